"""The scaling of a run: the number of workers, the resources of each, and their nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TypeVar

from dray.accelerators import check_quantities, families, family_of
from dray.accelerators.node_names import ACCELERATOR_TYPE, ACCELERATOR_TYPE_QUANTITY, POD_TYPE_LABEL
from dray.accelerators.tpu_topology import Slice
from dray.accelerators.type_names import check_type
from dray.checks import check_flags, fields_of, is_number, is_whole, plain, refuse_arrays
from dray.compat.arguments import checked_arguments
from dray.compat.attributes import AbsentMember
from dray.errors import ConfigError, join_names
from dray.scheduling.capacity import from_fixed, to_fixed
from dray.scheduling.labels import check_selector
from dray.scheduling.placement import STRATEGIES
from dray.scheduling.requests import Request, Slices
from dray.user_warnings import warn_user

T = TypeVar("T")

_RESOURCES = ("CPU", "GPU", "TPU", "memory")
# More are a slip of the keyboard, and would take long only to be refused.
_MOST_WORKERS = 100_000

Selectors = Mapping[str, str] | Sequence[Mapping[str, str]]


@checked_arguments("ScalingConfig")
@dataclass
class ScalingConfig:
    """The number of a run's workers, and the resources of each.

    Args:
        trainer_resources: Deprecated: resources to reserve for the controller. By default nothing,
            and it needs nothing.
        num_workers: Worker processes, at most 100,000; 0 runs the function in this process, for
            debugging. A tuple (least, most) starts with as many as fit.
        use_gpu: Whether each worker gets a GPU.
        resources_per_worker: Name to quantity: "CPU" (cores), "GPU", "TPU" (chips), "HPU", "NPU",
            "neuron_cores" and other accelerators, "memory" (bytes), or a custom name. A fraction
            of a GPU shares it. Default: one CPU, or what `use_gpu` and `use_tpu` say.
        placement_strategy: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD" over the nodes.
        accelerator_type: The type of the workers' accelerators, such as "A100" or "TPU-V6E": one of
            `dray.util.accelerators`, or another that a node has.
        label_selector: Nodes that workers may run on: label to "value", "!value", "in(a, b)" or
            "!in(a, b)"; or a list of these, one a worker.
        use_tpu: Whether each worker gets the TPU chips of a host.
        topology: The topology of a TPU slice, such as "4x4". Each worker gets one of its hosts,
            and `num_workers` is a multiple of the number of hosts; slices are reserved whole.
        elastic_resize_monitor_interval_s: With a tuple of `num_workers`, the seconds between
            two looks whether more workers fit. If they do when a checkpoint is committed, the run
            goes on from it with them.
        pin_workers: Whether each worker runs on cores of its own, of one NUMA node where possible.
            For machines with several NUMA nodes; Linux only.

    Raises:
        ConfigError: A value is malformed, or values contradict each other; the message says what is
            allowed.

    Example:
        >>> from dray.train import ScalingConfig
        >>> ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}).total_resources
        {'CPU': 1}
    """

    trainer_resources: Mapping[str, float] | None = None
    num_workers: int | tuple[int, int] = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"
    accelerator_type: str | None = None
    label_selector: Selectors | None = None
    use_tpu: bool = False
    topology: str | None = None
    elastic_resize_monitor_interval_s: float = 60.0
    _: KW_ONLY
    pin_workers: bool = False

    as_placement_group_factory = AbsentMember()
    from_placement_group_factory = AbsentMember()

    def __post_init__(self) -> None:
        self.check()
        self._warn_of_no_accelerator()
        self._warn_of_deprecated()

    def check(self) -> None:
        """Raise ConfigError if a field, which may have been set since, is malformed."""
        refuse_arrays(fields_of(self))
        check_flags(self, "use_gpu", "use_tpu", "pin_workers")
        # Copies of one's own: other mappings may not travel to workers.
        self.resources_per_worker = _copied(self.resources_per_worker)
        self.trainer_resources = _copied(self.trainer_resources)
        self._check_workers()
        self._check_interval()
        if self.placement_strategy not in STRATEGIES:
            raise ConfigError(
                f"placement_strategy must be one of {', '.join(STRATEGIES)}, "
                f"not {self.placement_strategy!r}"
            )
        meant = f"; did you mean num_workers={self.trainer_resources!r}?"  # it comes second
        self._check_resources(self.trainer_resources, "trainer_resources", meant)
        self._check_resources(self.resources_per_worker, "resources_per_worker")
        self._check_accelerators()
        if self.accelerator_type is not None:
            check_type(self.accelerator_type, "accelerator_type")
        self._check_tpu()
        self._check_selectors()
        chosen = self.label_selector
        if chosen is not None:
            self.label_selector = (
                dict(chosen) if isinstance(chosen, Mapping) else [dict(each) for each in chosen]
            )

    def _check_workers(self) -> None:
        given = self.num_workers
        sizes = given if isinstance(given, tuple) and len(given) == 2 else (given,)
        whole = [plain(size) for size in sizes]
        if not all(map(is_whole, whole)):
            raise ConfigError(
                "num_workers must be a whole number, 0 (run in this process) or more, or a tuple "
                f"of the least and the most, not {given!r}"
            )
        if whole[0] > _MOST_WORKERS:
            raise ConfigError(
                f"num_workers must be at most {_MOST_WORKERS}, or a tuple with such a least "
                f"number, not {given!r}"
            )
        if not isinstance(given, tuple):
            self.num_workers = whole[0]
            if whole[0] < 0:
                raise ConfigError(
                    f"num_workers must be 0 (run in this process) or more, not {given!r}"
                )
            return
        least, most = self.num_workers = (whole[0], whole[1])
        if not 1 <= least <= most:
            raise ConfigError(
                f"num_workers must be (least, most) with 1 <= least <= most, not {given!r}"
            )

    def _check_interval(self) -> None:
        interval = plain(self.elastic_resize_monitor_interval_s)
        self.elastic_resize_monitor_interval_s = interval
        if not is_number(interval) or not 0 <= interval < math.inf:
            raise ConfigError(
                "elastic_resize_monitor_interval_s must be a number of seconds, 0 or more, not "
                f"{interval!r}"
            )

    def _check_resources(
        self, resources: Mapping[str, float] | None, what: str, meant: str = ""
    ) -> None:
        if resources is not None and not isinstance(resources, Mapping):
            raise ConfigError(
                f"{what} must be a dict of names to quantities, not {resources!r}{meant}"
            )
        for name in resources or {}:
            _check_name(name)
        asked = to_fixed(resources or {})
        check_quantities(resources or {}, what)
        kinds = _accelerators(asked)
        if len(kinds) > 1:
            raise ConfigError(
                f"{what} asks for {join_names(kinds)}; a worker can have accelerators of one kind"
            )

    def _check_accelerators(self) -> None:
        """Check that the flags and the resources say the same."""
        if self.use_gpu and self.use_tpu:
            raise ConfigError("use_gpu=True and use_tpu=True exclude each other; drop one")
        given = self.resources_per_worker or {}
        flags = {"GPU": ("use_gpu", self.use_gpu), "TPU": ("use_tpu", self.use_tpu)}
        for name, (flag, used) in flags.items():
            if used and given.get(name) == 0:
                raise ConfigError(
                    f"{flag}=True with resources_per_worker={{'{name}': 0}} contradicts itself; "
                    "drop one"
                )
            if given.get(name) and not used:
                raise ConfigError(
                    f"resources_per_worker asks for {name}: {given[name]}, which needs {flag}=True"
                )
        others = [name for name in to_fixed(given) if name not in flags and family_of(name)]
        if others and (self.use_gpu or self.use_tpu):
            flag = "use_gpu" if self.use_gpu else "use_tpu"
            raise ConfigError(
                f"{flag}=True and resources_per_worker={{{others[0]!r}: ...}}: a worker can have "
                "accelerators of one kind; drop one"
            )

        if given and not to_fixed(given) and not (self.use_gpu or self.use_tpu):
            raise ConfigError(
                f"resources_per_worker={dict(given)!r} asks for nothing at all, but a worker must "
                'hold something; ask for a little, such as {"CPU": 0.01}, or leave it out for one '
                "CPU"
            )

    def _warn_of_no_accelerator(self) -> None:
        """Warn of a type without an accelerator, with which Ray too trains on CPUs."""
        kind, given = self.accelerator_type, self.resources_per_worker or {}
        if kind is None or self.use_gpu or self.use_tpu or _accelerators(to_fixed(given)):
            return
        warn_user(
            f"accelerator_type={kind!r} alone only chooses nodes that have such accelerators; the "
            "workers get none of them, and train on CPUs. Add use_gpu=True, or for accelerators "
            "other than GPUs how many each worker gets to resources_per_worker"
        )

    def _check_tpu(self) -> None:
        kind = self.accelerator_type or ""
        if not self.use_tpu:
            if self.topology is not None:
                raise ConfigError(f"topology={self.topology!r} is for TPU slices: set use_tpu=True")
            if kind.startswith("TPU-"):
                raise ConfigError(f"accelerator_type={kind!r} needs use_tpu=True")
            return
        if kind and not kind.startswith("TPU-"):
            raise ConfigError(
                f"accelerator_type={kind!r} is not a TPU; with use_tpu=True it must be one such "
                "as 'TPU-V6E'"
            )
        wanted = self.tpu_slice
        if wanted is not None:
            self._check_slices(wanted)
        elif self.topology is not None or self.max_workers > 1:
            raise ConfigError(
                "use_tpu=True with a topology or several workers needs both "
                "topology='...' and accelerator_type='TPU-...': they say how many hosts a "
                "slice has, and each worker gets one"
            )

    def _check_slices(self, slice_: Slice) -> None:
        hosts = slice_.hosts
        for workers in {self.min_workers, self.max_workers}:
            if workers % hosts:
                below, above = workers // hosts * hosts, (workers // hosts + 1) * hosts
                near = f"{below} or {above}" if below else f"{above}"
                raise ConfigError(
                    f"num_workers={self.num_workers} must be a multiple of {hosts}: a "
                    f"{slice_.accelerator_type} slice of topology {slice_.topology} has {hosts} "
                    f"hosts, and each worker gets one; ask for {near}"
                )
        chips = (self.resources_per_worker or {}).get("TPU", 0)
        if chips > slice_.chips_per_host:
            raise ConfigError(
                f"resources_per_worker asks for TPU: {chips}, but the hosts of a "
                f"{slice_.accelerator_type} slice of topology {slice_.topology} have "
                f"{slice_.chips_per_host} chips"
            )
        if self.label_selector is not None and self.max_workers > 1:
            raise ConfigError(
                "label_selector does not go with a TPU topology: the slice decides on which nodes "
                "workers run"
            )

    def _check_selectors(self) -> None:
        chosen = self.label_selector
        if chosen is None or isinstance(chosen, Mapping):
            check_selector(chosen or {}, "label_selector")
            return
        if not isinstance(chosen, list | tuple):
            raise ConfigError(f"label_selector must be a dict or a list of dicts, not {chosen!r}")
        if len(chosen) != (self.max_workers or len(chosen)):
            raise ConfigError(
                f"label_selector has {len(chosen)} entries for {self.max_workers} workers; give "
                "one dict for all of them, or one for each"
            )
        for index, selector in enumerate(chosen):
            check_selector(selector, f"label_selector[{index}]")

    def _warn_of_deprecated(self) -> None:
        if self.trainer_resources is None:
            return
        warn_user(
            "trainer_resources is deprecated: the controller needs nothing, and by default nothing "
            "is reserved for it; remove the argument",
            DeprecationWarning,
        )

    @property
    def min_workers(self) -> int:
        """The least workers that the run starts with."""
        return self.num_workers[0] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def max_workers(self) -> int:
        """The most workers that the run starts with."""
        return self.num_workers[1] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def elasticity_enabled(self) -> bool:
        """True if the number of workers depends on what is free."""
        return isinstance(self.num_workers, tuple)

    @property
    def tpu_slice(self) -> Slice | None:
        """The kind of TPU slice that the workers lie on, if they do."""
        if self.topology is None or self.accelerator_type is None:
            return None
        chips = (self.resources_per_worker or {}).get("TPU")
        return Slice.parse(self.topology, self.accelerator_type, chips)

    @property
    def sizes(self) -> range:
        """The numbers of workers that the run may start with."""
        most = min(self.max_workers, _MOST_WORKERS)
        return range(self.min_workers, most + 1, self.step)

    @property
    def step(self) -> int:
        """The number of which the number of workers is a multiple: the hosts of a slice."""
        return self.tpu_slice.hosts if self.tpu_slice is not None else 1

    @property
    def bundle(self) -> dict[str, float]:
        """The resources that one worker asks for."""
        asked = from_fixed(to_fixed(self.resources_per_worker or {}))
        if self.use_gpu:
            asked.setdefault("GPU", 1)
        if self.use_tpu:
            asked.setdefault(
                "TPU", self.tpu_slice.chips_per_host if self.tpu_slice is not None else 1
            )
        asked = asked or {"CPU": 1}
        if self.accelerator_type is not None:
            asked[f"{ACCELERATOR_TYPE}{self.accelerator_type}"] = ACCELERATOR_TYPE_QUANTITY
        return asked

    @property
    def accelerator(self) -> str | None:
        """The resource that is each worker's accelerator, such as "GPU", if it has one."""
        return next((name for name in self.bundle if family_of(name) is not None), None)

    @property
    def selectors(self) -> list[Mapping[str, str]]:
        """The labels that workers' nodes must have: none, those of all workers, or of each one."""
        chosen = self.label_selector or []
        all_of = [chosen] if isinstance(chosen, Mapping) else list(chosen)
        if self.tpu_slice is None:
            return all_of
        own = {POD_TYPE_LABEL: self.tpu_slice.pod_type}
        return [{**selector, **own} for selector in all_of or [{}]]

    @property
    def trainer_bundle(self) -> dict[str, float]:
        """The resources reserved for the controller; zeros left out, and by default none."""
        return from_fixed(to_fixed(self.trainer_resources or {}))

    def request(self, workers: int) -> Request:
        """Return what so many workers ask an engine for; the controller's share comes last."""
        bundles: list[Mapping[str, float]] = [self.bundle] * workers
        if not self.max_workers:  # in this process: no strategy, and nothing for a controller
            return Request(bundles, selectors=self.selectors[:workers])
        selectors = list(self.selectors[:workers])
        if len(selectors) == 1:
            selectors *= workers
        slices = None
        wanted = self.tpu_slice
        if wanted is not None and workers >= wanted.hosts:  # else it is the one of this process
            spare = wanted.chips_per_host - int(self.num_tpus_per_worker)
            slices = Slices(workers // wanted.hosts, wanted.pod_type, wanted.hosts, spare)
        if self.trainer_bundle:
            bundles.append(self.trainer_bundle)
            selectors = [*selectors, {}] if selectors else []
        return Request(bundles, self.placement_strategy, selectors, slices=slices)

    @property
    def total_resources(self) -> dict[str, float]:
        """The resources that all workers ask for together, as many as there may be."""
        fixed = to_fixed(self.bundle)
        return from_fixed({name: units * self.max_workers for name, units in fixed.items()})

    @property
    def num_cpus_per_worker(self) -> float:
        """The CPUs of each worker."""
        return self.bundle.get("CPU", 0)

    @property
    def num_gpus_per_worker(self) -> float:
        """The GPUs of each worker."""
        return self.bundle.get("GPU", 0)

    @property
    def num_tpus_per_worker(self) -> float:
        """The TPU chips of each worker."""
        return self.bundle.get("TPU", 0)

    @property
    def additional_resources_per_worker(self) -> dict[str, float]:
        """The resources of each worker besides CPUs, GPUs and TPU chips."""
        return {n: q for n, q in self.bundle.items() if n not in ("CPU", "GPU", "TPU")}


def _copied(resources: T) -> T | dict[str, float]:
    """Return a mapping's quantities as int or float; all else as it is."""
    if not isinstance(resources, Mapping):
        return resources
    return {name: plain(quantity) for name, quantity in resources.items()}


def _accelerators(resources: Iterable[str]) -> list[str]:
    return [name for name in resources if family_of(name) is not None]


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a resource's name must be a string, not {name!r}")
    exact = dict.fromkeys((*_RESOURCES, *(family.resource for family in families())))
    known = {each.lower(): each for each in exact}
    if name.lower() in known and name not in exact:
        raise ConfigError(
            f"the resource {name!r} does not exist; did you mean {known[name.lower()]!r}? "
            f"There are {join_names(tuple(exact))}, and the names that dray.init(resources=...) "
            "declares"
        )
