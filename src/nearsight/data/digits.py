"""The data set that is always there."""

import numpy as np

from .arrays import Arrays, to_bytes
from .samples import Data, Subset
from .split import choose_share


def open_digits() -> Data:
    """Scikit-learn's 1,797 scanned digits of 8×8 pixels; a fifth, always the same, is the test split."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    whole = Arrays("digits", to_bytes(digits.images, 0, 16), digits.target.astype(np.int64))
    test = choose_share(whole, 0.2, "digits test")
    train = np.setdiff1d(np.arange(len(whole)), test)
    classes = tuple(map(str, digits.target_names))
    return Data("digits", "digits", classes, train=Subset(whole, train), test=Subset(whole, test))
