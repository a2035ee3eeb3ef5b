"""`python -m bench.contenders.tuning`: the name of `bench.tuning` in earlier records."""

import sys

from bench.tuning import main

if __name__ == "__main__":
    sys.exit(main())
