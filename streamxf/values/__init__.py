"""What the values in tensors are: counts of NaN, infinities and zeros, range, mean, spread and a histogram."""
