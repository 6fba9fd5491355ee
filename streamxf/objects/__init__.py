"""Objects: what is stored of them is checked before anything is made of it, torch's own unpickler included."""
