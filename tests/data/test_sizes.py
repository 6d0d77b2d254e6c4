from nearsight.data.sizes import choose_size


def test_images_are_never_enlarged_but_to_32() -> None:
    assert [choose_size(side) for side in (1, 8, 27)] == [32, 32, 32]
    assert [choose_size(side) for side in (28, 31, 32, 63, 64, 150, 223, 224, 4000)] == [
        *(28, 28, 32, 48, 64, 128, 192, 224, 224),
    ]
