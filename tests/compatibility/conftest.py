collect_ignore = ["write_stored.py"]  # it has the names of commit 659e761
