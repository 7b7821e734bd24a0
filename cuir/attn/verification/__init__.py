"""Problems, contracts and expected numbers of attention kernels."""
