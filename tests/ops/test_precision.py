import torch

from nearsight.ops.precision import wide, without_autocast


def test_sums_are_made_in_float32_or_wider():
    assert wide(torch.float16) == wide(torch.bfloat16) == wide(torch.float32) == torch.float32
    assert wide(torch.float64) == torch.float64


def test_autocast_can_be_left_for_a_block():
    matrix = torch.randn(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with without_autocast(matrix.device):
            assert (matrix @ matrix).dtype == torch.float32
        assert (matrix @ matrix).dtype == torch.bfloat16


def test_a_device_without_autocast_has_nothing_to_leave():
    matrix = torch.empty(3, 3, device="meta")
    with without_autocast(matrix.device):
        assert (matrix @ matrix).shape == (3, 3)
