"""RLinf's own script with a rollout worker for another project's engine, as RLinf's chooses one for PhyAI."""

import tests.runs.entry_script as script
from tests.hosts.rlinf.own_engines import OwnEngineWorker

if __name__ == "__main__":
    script.MultiStepRolloutWorker = OwnEngineWorker
    script.main()
