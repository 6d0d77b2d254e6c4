"""The kinds of data that can be opened, a file each."""
