"""Shipped schedules, one JSON file each."""
