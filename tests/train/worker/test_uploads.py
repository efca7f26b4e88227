"""Checkpoints on their way into a run whose controller answers no more."""

from __future__ import annotations

import threading

from dray.train import Checkpoint
from dray.train.worker.run_messages import ReportDone, Share
from dray.train.worker.uploads import Upload, Uploads


def test_what_every_rank_has_reported_is_put_in_place_though_the_rest_is_given_up() -> None:
    goes_on, staged = threading.Event(), []

    def stage(share: Share, upload: Upload) -> None:
        assert goes_on.wait(10)
        staged.append(share.report)

    def secure(done: ReportDone) -> None:
        raise AssertionError("nothing is done")

    uploads = Uploads(stage, secure)
    upload = Upload(Checkpoint("somewhere"), ("model",), beside=True)
    for report in range(3):
        uploads.begin(report, upload)
        uploads.go_on_beside(report)
    for report in range(2):  # the third is not made by all
        uploads.take(Share(report, "staging", ("model",)))
    uploads.give_up()
    uploads.begin(3, None)
    goes_on.set()
    assert uploads.see_through(3) is None
    uploads.finish()
    assert staged == [0, 1]
    uploads.close()
