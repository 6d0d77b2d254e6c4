"""A page in the browser: drop an image, click on it, and see what models see there."""
