"""A made-up host is there while it lasts, and leaves nothing."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request

import pytest

from dray.testing import FakeHost


def ask_metadata(key: str, **headers: str) -> str:
    url = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/instance/{key}"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
        return str(answer.read().decode())


def test_a_fake_host_undoes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAY_TEST_GONE", "here")
    before = dict(os.environ), list(sys.path), sys.modules["json"]
    host = FakeHost(
        files={"dev/davinci0": ""},
        modules={"json": "fake = True", "vendor_of_nothing.tool": "x = 1"},
        environment={"DRAY_TEST_GONE": None, "DRAY_TEST_NEW": "1"},
    )
    with host, FakeHost(metadata={}):
        import vendor_of_nothing.tool  # type: ignore[import-not-found]

        assert vendor_of_nothing.tool.x == 1
        assert "DRAY_TEST_GONE" not in os.environ
        root = os.environ["DRAY_HOST_ROOT"]
    assert (dict(os.environ), list(sys.path), sys.modules["json"]) == before
    assert not any(name.startswith("vendor_of_nothing") for name in sys.modules)
    assert not os.path.exists(root)


def test_a_fake_host_that_cannot_be_made_leaves_nothing() -> None:
    before = dict(os.environ)
    with pytest.raises(OSError, match="dev"), FakeHost(files={"dev": "", "dev/nvidia0": ""}):
        pass
    assert dict(os.environ) == before


def test_a_fake_host_answers_like_googles_metadata_server() -> None:
    google = {"Metadata-Flavor": "Google"}
    with FakeHost(metadata={"accelerator-type": "v4-16", "id": "7"}):
        assert ask_metadata("attributes/accelerator-type", **google) == "v4-16"
        assert ask_metadata("id", **google) == "7"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask_metadata("attributes/tpu-env", **google)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            ask_metadata("id")
    with FakeHost(), pytest.raises(urllib.error.URLError, match="refused"):
        ask_metadata("id", **google)
