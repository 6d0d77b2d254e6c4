"""How to train, as strictly typed values: recipes, their files, and what to say of a setting that is wrong."""
