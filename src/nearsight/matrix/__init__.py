"""Which local part fits which model of timm, measured."""
