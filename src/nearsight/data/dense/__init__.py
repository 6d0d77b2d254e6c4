"""Images with objects or regions: sources of every form, transforms, batches and checks."""
