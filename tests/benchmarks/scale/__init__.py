"""A store of any size on a small cluster: ours and its rivals, with their costs, in one run."""
