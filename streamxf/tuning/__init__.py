"""What `streamxf.tune` is made of: a sample of the data, chains timed on it, and the choice for a given bandwidth."""
