"""`python -m gdro.train` whose main process kills itself when it has recorded a given step; started by
test_paper_cells in place of the module."""

import sys

from killed_run import die_at

from gdro import train

if __name__ == "__main__":
    die_at(int(sys.argv[1]), "after")
    train.main(sys.argv[2:])
