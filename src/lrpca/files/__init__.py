"""Files: formats, text tables, data that are read a rectangle at a time, and writing without loss."""
