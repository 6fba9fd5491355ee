"""Statistics of the values in tensors: counts of NaN, infinities and zeros, range, mean, deviation, histogram."""
