"""The image size to train at."""

SIZES = (28, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
# Photographs come larger than this, but the time for a step grows with the square of the side.
LARGEST_BY_ITSELF = 224
# Smaller images are enlarged to what the nano models are made for.
SMALLEST = 32


def choose_size(side: float) -> int:
    """The side to train at for images of a side: a round number that is not above it, from 28 to 224.

    Example:
        >>> choose_size(8), choose_size(28), choose_size(100), choose_size(500)
        (32, 28, 96, 224)
    """
    if side < SIZES[0]:
        return SMALLEST
    return max(size for size in SIZES if size <= min(side, LARGEST_BY_ITSELF))
