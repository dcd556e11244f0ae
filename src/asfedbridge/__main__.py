import sys

from asfedbridge.cli import main

sys.exit(main())
