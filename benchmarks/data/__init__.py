"""What is saved: synthetic weights, a published model's, a training state, and models in the shapes of two others."""
