"""The comparisons of the LRPCA paper, measured again: one file for each of its figures and tables.

``lrpca reproduce`` calls `reproduce.reproduce`. Instances are the paper's: X = U Vᵀ of rank 5 with
Gaussian factors, a share α of the entries spoiled by uniform numbers of up to mean|X|.

References
----------
.. [1] H. Cai, J. Liu, W. Yin, "Learned Robust PCA: A Scalable Deep Unfolding Approach for High-Dimensional Outlier
   Detection", NeurIPS 2021, section "Numerical experiments".
"""
