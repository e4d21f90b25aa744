import sys

from homing.cli.main import main

sys.exit(main())
