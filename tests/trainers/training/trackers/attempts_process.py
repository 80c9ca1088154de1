"""Attempts of a made-up run with a tracker, each `killed` or `resumed`: attempts_process.py TRACKER FOLDER ATTEMPT…"""

import sys
from pathlib import Path

from tests.trainers.run_folder.writers import begin, group_of
from tests.trainers.training.trackers.tracked_attempts import run_killed, run_resumed, trackers_of
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage
from trainers.training.trackers import tracker_feed
from trainers.training.trackers.known_trackers import KNOWN_TRACKERS


def main(tracker: str, folder: str, *attempts: str) -> None:
    """Prints what is told of the tracker."""
    # It has to load the package.
    tracker_feed.LAST_WAIT_S = 120.0
    run_folder = RunFolder(open_storage(folder))
    for attempt in attempts:
        driver = begin(run_folder)
        writer = group_of(driver, f"group-{driver.attempt}")
        run = {"killed": run_killed, "resumed": run_resumed}[attempt]
        run(writer, trackers_of(writer, Path(folder), {tracker: KNOWN_TRACKERS[tracker]()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
