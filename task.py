"""Entry point of a job on the cluster: arguments → TrainConfig → trainers.pipeline.fit → exit code.

ray job submit --working-dir . -- python task.py                                  the demo recipe, on the driver's node
ray job submit --working-dir . -- python task.py --config jobs/specs/whisper_micro.yaml
python task.py --model_size tiny --name sr --language Serbian --max_steps 5000 --num-workers 3 --use-gpu
"""

import sys

from trainers.distributed.console import opened_for

if __name__ == "__main__":
    with opened_for(sys.argv[1:]):
        from trainers.main import main

        sys.exit(main(sys.argv[1:]))
