"""A third party's training script: RLinf's own, with its extension and its env worker."""

import tests.runs.entry_script as script
from tests.runs import their_extension

if __name__ == "__main__":
    their_extension.register()
    script.EnvWorker = their_extension.CalibratedEnvWorker
    script.main()
