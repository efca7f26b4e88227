"""Names of Ray that dray does not have, and their replacements: one table for all of dray.

`TABLE` maps an owner (a module, a class by its bare name, or a function with parentheses) to the
names that it lacks, each with its advice: the text after "dray has no tune: " in the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Ray's default for a deprecated argument.
GIVEN_UP: object = "DEPRECATED"


class Absent(NamedTuple):
    """The advice for a program that uses an absent name.

    Attributes:
        advice: The replacement to use.
        deprecated: Whether the name is deprecated in Ray as well.
        unset: Values of an argument that have no effect, besides None and empty values.
    """

    advice: str
    deprecated: bool = False
    unset: tuple[object, ...] = ()

    def is_unset(self, value: object) -> bool:
        """Return whether a value of the argument has the same effect as leaving it out."""
        if value is None or (isinstance(value, Mapping | list | tuple | str) and not value):
            return True
        if self.deprecated and isinstance(value, str) and value == GIVEN_UP:
            return True
        return any(type(value) is type(other) and value == other for other in self.unset)


def _each(names: str, advice: str | Absent) -> dict[str, str | Absent]:
    return dict.fromkeys(names.split(), advice)


def _gone(advice: str) -> Absent:
    return Absent(advice, deprecated=True)


_IDS = "ids are plain strings here, such as ref.hex() or get_runtime_context().get_node_id()"
_LANGUAGES = "dray runs Python only; keep Ray for actors and functions of other languages"
_INTERNALS = "it is internal to Ray; docs/core.md shows the public names to use"
_OBSERVED = "ask dray.util.state, or run `dray status --json`"
_ON_A_NODE = "run the program on a node of the cluster, best with `ray job submit`"
_TENSORS = "tensors are passed like all other values"
_JOB = "give its parts to dray.init(runtime_env=..., namespace=...)"
_LOGGING = "set up logging in the program, or give logging_level= to dray.init()"
_PREDICT = "load the checkpoint in a task or an actor, and predict there"
_WRAPPED = "use TorchTrainer; the framework's page in docs/ has the lines to change"
_DDP = "use dray.train.torch.TorchTrainer, whose DistributedDataParallel does the same"
_BESIDE_MODEL = "write the output of its serialize() to a file beside the model"

_ROOT: dict[str, str | Absent] = {
    **_each("_config _private internal services worker widgets", _INTERNALS),
    "ray": "write `import dray as ray`",
    "state": _OBSERVED,
    "logger": "use a logger of the program's own: logging.getLogger(__name__)",
    "scripts": "the command line is `dray` (`dray --help`); for clusters, Ray's own `ray`",
    **_each("dashboard get_dashboard_url show_in_dashboard", f"there is no dashboard; {_OBSERVED}"),
    "autoscaler": "start a cluster with Ray's autoscaler and dray.init(engine='ray') on it",
    **_each("client ClientBuilder client_builder", _ON_A_NODE),
    "cluster_utils": "dray.init(nodes=[...]) simulates several nodes on this machine",
    **_each("cross_language java_actor_class java_function cpp_function Language", _LANGUAGES),
    "dag": "call .remote() with references as arguments; tasks wait for their arguments",
    "job_config": _JOB,
    "job_submission": "run the script itself, or submit it to a cluster with `ray job submit`",
    "llm": "use an inference server for serving and for batches, or keep Ray for it",
    "rllib": "train agents with a library of your own in tasks and actors, or keep Ray for it",
    "serve": "serve models with a web framework in an actor, or keep Ray for it",
    "tune": "loop over fit() or let Optuna drive it, or call fit() within Ray Tune's trials",
    "workflow": "call tasks from other tasks, and write results that must last to files",
    "LoggingConfig": _LOGGING,
    **_each(
        "SCRIPT_MODE WORKER_MODE", "get_runtime_context().get_task_id() is None only in the driver"
    ),
    "LOCAL_MODE": "dray.init(local_mode=True) or engine='inline' runs everything in this process",
    **_each(
        "ActorClassID ActorID FunctionID JobID NodeID ObjectID PlacementGroupID TaskID UniqueID "
        "WorkerID",
        _IDS,
    ),
}

_SLICES = "ask for slices by ScalingConfig(use_tpu=True, topology=...)"
_OWN_READER = "make rows with from_items(), or read the data in map_batches() over a list of paths"
_NO_BLOCKS = "blocks are Arrow tables of this process; to_arrow() and iter_batches() return rows"
_AS_NEEDED = "write the batches of iter_batches() with pyarrow or pandas"
_WRITE = "call write_parquet(), write_csv() or write_json(), or write rows in a loop"
_ONE_QUERY = "one process runs the query; union() the datasets of several queries"
_FROM_VALUES = "types follow from the values; cast columns with map_batches() if need be"
_DATA: dict[str, str | Absent] = {
    **_each(
        "read_audio read_bigquery read_clickhouse read_databricks_tables "
        "read_hudi read_delta_sharing_tables read_kafka "
        "read_lerobot read_mcap read_mongo read_snowflake read_unity_catalog "
        "read_videos read_zarr from_blocks from_daft from_dask from_mars from_modin from_spark "
        "from_tf",
        _OWN_READER,
    ),
    "SinkMode": f"{_OWN_READER}; {_WRITE}",
    "RandomSeedConfig": "call random_shuffle(seed=...)",
    "_internal": _INTERNALS,
    **_each(
        "Catalog CatalogAccessMode ClickHouseTableSettings DatabricksUnityCatalog KafkaAuthConfig "
        "ReaderFormat ResolvedSource",
        _OWN_READER,
    ),
    "list_stats_summaries": "call stats() of a dataset or shard",
}
_DATASET: dict[str, str | Absent] = {
    **_each(
        "get_internal_block_refs iter_internal_ref_bundles to_random_access_dataset", _NO_BLOCKS
    ),
    **_each(
        "deserialize_lineage has_serializable_lineage serialize_lineage",
        "pickle the dataset, which has only a plan and the paths of its files",
    ),
    **_each("to_daft to_dask to_mars to_modin to_spark", "pass it the table of to_arrow()"),
    **_each(
        "write_bigquery write_clickhouse write_iceberg "
        "write_kafka write_mongo write_snowflake write_turbopuffer",
        _WRITE,
    ),
    "context": "DataContext.get_current() has the options",
    "copy": "use the dataset itself: no method changes it",
    "get_stats_summary": "call stats() instead",
    "get_dataset_id": _INTERNALS,
    **_each(
        "fully_executed is_fully_executed lazy",
        _gone("a dataset is always lazy; materialize() computes its rows"),
    ),
    **_each(
        "iter_epochs repeat rewindow window",
        _gone("datasets are read block by block; each iteration over one is an epoch"),
    ),
    "dataset_format": _gone("blocks are Arrow tables"),
    "default_batch_format": _gone("batches are dicts of NumPy arrays unless batch_format= says so"),
    "names": "call columns()",
    "types": "use schema().types",
    "__len__": "call count(), which may read all rows",
}
_UTIL: dict[str, str | Absent] = {
    **_each("common serialization_addons", _INTERNALS),
    "actor_group": "make a list of actors and call each",
    "check_open_ports": "Ray has this for its clusters: python -m ray.util.check_open_ports",
    **_each("client client_connect connect", _ON_A_NODE),
    "disconnect": "call dray.shutdown()",
    **_each(
        "debugpy ray_debugpy pdb rpdb",
        "dray.init(engine='inline') runs everything in this process, where pdb works",
    ),
    "enable_periodic_logging": "log in the program itself",
    "get_node_instance_id": "put a node's cloud name into its labels, which dray.nodes() shows",
    "horovod": _DDP,
    **_each(
        "iter iter_metrics", "use generators: num_returns='streaming' yields results as they come"
    ),
    "lightgbm": "use dray.train.lightgbm.LightGBMTrainer, or run lightgbm within a task",
    "sgd": "use dray.train.torch.TorchTrainer",
    "spark": "start Ray on Spark with Ray's own tools, then dray.init(engine='ray')",
    "timer": "use time.perf_counter()",
    "tpu": _SLICES,
    "tracing": f"nothing is traced; {_OBSERVED}",
    "xgboost": "use dray.train.xgboost.XGBoostTrainer, or run xgboost within a task",
}

_NO_CALLBACKS = f"call the callback's code in the tasks of the graph; {_OBSERVED}"
_NO_OWNERSHIP = "a value lives as long as any reference to it, in whichever process it was made"
_NO_GENERATOR = "end the task with dray.cancel(generator)"
_NO_GRAPHS = "there are no compiled graphs; call .remote() with references as arguments"
_IN_TWO = "call .options(...).remote(...), with the arguments themselves"
_NO_REF = "references come from .remote() and dray.put()"
_CLASSES: dict[str, dict[str, str | Absent]] = {
    "ObjectRef": {
        "call_site": "record in the program where it makes references",
        **_each("from_binary from_hex", f"{_NO_REF}; pickle a reference to send it"),
        "from_random": _NO_REF,
        "job_id": "ask get_runtime_context().get_job_id() where it is made",
        "nil": f"{_NO_REF}; use None for none",
        "owner_address": _NO_OWNERSHIP,
        "redis_shard_hash": _INTERNALS,
        "task_id": "ask get_runtime_context().get_task_id() in the task",
        "tensor_transport": _TENSORS,
    },
    "ObjectRefGenerator": {
        **_each("aclose athrow close throw", _NO_GENERATOR),
        **_each("asend send", "pass the task an actor or a queue, from which it gets its input"),
    },
    "PlacementGroup": {"empty": "use None for no placement group"},
    "RuntimeEnv": _each(
        "conda_config conda_env_name conda_uri deserialize get_extension has_py_container "
        "image_uri java_jars nsight pip_config pip_uri plugin_uris plugins py_container_image "
        "py_container_run_options py_container_worker_path py_executable py_modules_uris "
        "rocprof_sys serialize uv_config uv_uri virtualenv_name working_dir_uri",
        "it is a dict: read its fields by name, and use json.dumps() for text",
    ),
    "RuntimeContext": {"worker": _INTERNALS},
    "DrayError": {
        **_each("from_bytes to_bytes", "errors can be pickled directly"),
        "from_ray_exception": _INTERNALS,
    },
    "ActorError": {
        "BASE_ERROR_MSG": "use str(error), the message",
        "from_task_error": _INTERNALS,
    },
    **{
        key: {"bind": _NO_GRAPHS, "_remote": _IN_TWO}
        for key in ("ActorClass", "ActorMethod", "RemoteFunction")
    },
}
_OPTIONS: dict[str, dict[str, str | Absent]] = {
    "tasks": {"_num_objects_per_yield": Absent("yield lists of that many items", unset=(1,))},
    "actors": {
        "_actor_generator_backpressure_num_objects": Absent(
            "set _generator_backpressure_num_objects for each method", unset=(-1,)
        ),
        "enable_tensor_transport": Absent(_TENSORS, unset=(False,)),
    },
    "calls of an actor's method": {"tensor_transport": Absent(_TENSORS, unset=("object_store",))},
}
_ARGUMENTS: dict[str, dict[str, str | Absent]] = {
    "dray.init()": {
        "job_config": _JOB,
        "logging_config": _LOGGING,
        "storage": "give RunConfig(storage_path=...) to a trainer",
        "_tracing_startup_hook": f"nothing is traced; {_OBSERVED}",
    },
    "NodeAffinitySchedulingStrategy()": {
        "_fail_on_unavailable": Absent("leave it out; soft=False waits", unset=(False,)),
        "_spill_on_unavailable": Absent("leave it out; soft=True says so", unset=(False,)),
    },
    "placement_group()": {
        "_soft_target_node_id": "name nodes in bundle_label_selector",
        "topology_strategy": "name labels of nodes in bundle_label_selector",
    },
    "ActorPoolStrategy()": _each(
        "max_concurrent_calls_per_actor enable_true_multi_threading",
        Absent("each worker runs one call at a time; ask for more workers", unset=(1, False)),
    ),
    "Unique()": {"encode_lists": Absent("call flat_map() on the lists first", unset=(False,))},
    "TorchCheckpoint.from_model()": {"preprocessor": _BESIDE_MODEL},
    "ray_dask_get()": {
        "ray_callbacks": _NO_CALLBACKS,
        "ray_persist": "call persist() without it; it keeps its results in the program",
        "_ray_enable_progress_bar": _OBSERVED,
    },
    "dray.put()": {
        "_owner": _NO_OWNERSHIP,
        "_tensor_transport": Absent(_TENSORS, unset=("object_store",)),
    },
}

_OF_TUNE = "it was for trials of Ray Tune, and a run of dray is not a trial"
_EACH_REPORT = f"{_OF_TUNE}; report() copies each checkpoint when it is called"
_PRECISION = "use torch.autocast and torch.amp.GradScaler"
_SAME_NAME = "make the trainer again with the same RunConfig(name=...); fit() continues that run"
_IN_CONFIG = "put the values that the workers need into train_loop_config"

_STATE: dict[str, str | Absent] = {
    **_each(
        "get_log list_logs",
        "the driver shows the output of workers; a run's output is also in logs/ in its directory",
    ),
    "list_runtime_envs": "get_runtime_context().runtime_env is that of a task or actor",
    "list_cluster_events": "read the run's events.jsonl",
    "StateApiClient": "the functions of dray.util.state ask for the session of this program",
}

_TRAIN: dict[str, str | Absent] = {
    "data": "DataConfig and get_dataset_shard are names of dray.train",
    "SyncConfig": _gone(_EACH_REPORT),
    "NCCLHangError": "set TorchConfig(timeout_s=...), after which NCCL itself ends a stuck worker",
    "Trainer": "use dray.train.torch.TorchTrainer or DataParallelTrainer",
    "session": "report, get_context and get_checkpoint are names of dray.train",
    **_each(
        "integrations comet mlflow wandb",
        "docs/tracking.md shows how to send reports to TensorBoard, MLflow and W&B",
    ),
    **_each("util utils _internal", _INTERNALS),
    "horovod": _DDP,
    "error": "the errors of training are names of dray.train",
    **_each("predictor batch_predictor", _PREDICT),
    "examples": "there are programs in the examples/ folder of dray's repository",
    "BaseTrainer": "use dray.train.DataParallelTrainer",
    **{
        f"{framework}Trainer": f"it is in dray.train.{framework.lower()}"
        for framework in ("Torch", "Tensorflow", "Jax", "XGBoost", "LightGBM")
    },
}

_TRAIN_TORCH: dict[str, str | Absent] = {
    **_each("accelerate backward", _gone(_PRECISION)),
    "prepare_optimizer": _gone(f"use the optimizer as it is; {_PRECISION}"),
    "xla": "ask for the chips by ScalingConfig: TorchTrainer forms an xla group on its own",
    "TorchPredictor": _PREDICT,
    **_each(
        "TorchftConfig torchft_config",
        "dray has no replica groups yet; all workers of a run restart together",
    ),
}

_ANY_TRAINER: dict[str, str | Absent] = {
    **_each(
        "num_workers use_gpu use_tpu resources_per_worker placement_strategy accelerator_type",
        "give it to ScalingConfig, as scaling_config=ScalingConfig(...)",
    ),
    **_each(
        "name storage_path storage_filesystem failure_config checkpoint_config",
        "give it to RunConfig, as run_config=RunConfig(...)",
    ),
    "preprocessor": _gone(
        "transform the datasets first: datasets={'train': preprocessor.fit_transform(dataset)}"
    ),
}
_TRAINER: dict[str, str | Absent] = {
    **_ANY_TRAINER,
    "metadata": _gone(_IN_CONFIG),
    "resume_from_checkpoint": _gone(
        f"give the checkpoint's path in train_loop_config and load it where get_checkpoint() "
        f"returns None, or {_SAME_NAME}"
    ),
}

_TABLE: dict[str, dict[str, str | Absent]] = {
    "dray": _ROOT,
    "dray.experimental": {
        **_each("channel compiled_dag_ref rdt", _NO_GRAPHS),
        "shuffle": "call random_shuffle() of a dataset, or write it as tasks",
        **_each("collective multiprocessing queue", "see dray.util"),
        **_each("dynamic_resources internal_kv job locations sandbox util", _INTERNALS),
    },
    "dray.util": _UTIL,
    "dray.util.state": _STATE,
    "dray.util.accelerators": {"tpu": _SLICES},
    "dray.util.dask": {
        **_each("ray_dask_persist", "call persist(), which keeps its results in the program"),
        **_each("RayDaskCallback local_ray_callbacks unpack_ray_callbacks", _NO_CALLBACKS),
        "ProgressBarCallback": _OBSERVED,
        "dataframe_optimize": "Dask optimizes its frames itself",
    },
    "dray.data": _DATA,
    "dray.data.expressions": _each(
        "star StarExpr", "with_column() keeps all other columns; choose with select_columns()"
    )
    | _each(
        "BinaryExpr DownloadExpr MonotonicallyIncreasingIdExpr Operation RandomExpr UDFExpr "
        "UUIDExpr UnaryExpr",
        "every expression is an Expr, whose repr says what it calculates",
    ),
    "dray.data.collate_fn": {"DefaultCollateFn": "iter_torch_batches() makes tensors without it"},
    "dray.data.aggregate": {"VectorizedAggregateFnV2": "write a subclass of AggregateFnV2"},
    "dray.data.read_parquet()": {
        "filter": _gone("call filter(expr=...) of the dataset"),
        "catalog": "give it the paths of the table's files",
        "include_row_hash": Absent("make such a column with map_batches()", unset=(False,)),
        "skip_paths": "pass it only the paths that it should read",
        "tensor_column_schema": "reshape arrays with map_batches()",
    },
    "dray.data.read_sql()": _each("shard_keys shard_hash_fn", Absent(_ONE_QUERY, unset=("MD5",))),
    **{
        f"dray.data.read_{what}()": _each(
            "arrow_open_stream_args arrow_open_file_args",
            "pass filesystem=, and name compressed text files by their compression, such as .gz",
        )
        for what in ("binary_files", "images", "numpy", "text")
    },
    **{
        f"Dataset.{method}()": {
            "ray_remote_args_fn": "give the options themselves, such as num_gpus= and runtime_env=",
            "fallback_strategy": "ask in label_selector= for a label that all suitable nodes have",
        }
        for method in (
            *("map", "map_batches", "flat_map", "filter", "add_column", "with_column"),
            *("with_columns", "drop_columns", "rename_columns", "select_columns"),
        )
    },
    "Dataset.write_tfrecords()": {"tf_schema": _FROM_VALUES},
    "dray.data.sources": {
        "PathPartitionEncoder": _INTERNALS,
        **_each(
            "BaseFileMetadataProvider Connection DefaultFileMetadataProvider "
            "DeltaSharingDatasource DummyOutputDatasink FastFileMetadataProvider "
            "FileMetadataProvider LeRobotDatasource MCAPDatasource RandomIntRowDatasource "
            "RangeDatasource Reader TimeRange TurbopufferDatasink",
            "write a subclass of dray.data.Datasource or dray.data.Datasink",
        ),
    },
    **{
        f"Dataset.write_{what}()": _each(
            "arrow_open_stream_args arrow_csv_args_fn arrow_parquet_args_fn catalog "
            "pandas_json_args_fn",
            _AS_NEEDED,
        )
        | {
            "orient": Absent(_AS_NEEDED, unset=("records",)),
            "lines": Absent(_AS_NEEDED, unset=(True,)),
        }
        for what in ("csv", "images", "json", "numpy", "orc", "parquet", "webdataset")
    },
    "dray.data.preprocessors": {
        "BatchMapper": _gone("call map_batches() of the dataset"),
    },
    "Concatenator()": _each(
        "exclude include", _gone("name the columns to put together: Concatenator(columns=[...])")
    ),
    "Dataset": _DATASET,
    "DataIterator": {
        **_each(
            "add_column columns count filter flat_map limit map map_batches num_blocks "
            "random_shuffle sort show sum take take_all take_batch to_pandas",
            "call it on the dataset that materialize() returns",
        ),
        "iter_epochs": _gone("each iteration over it is an epoch"),
    },
    "dray.train": _TRAIN,
    "dray.train.trainer": {"TrainingIterator": _INTERNALS},
    **_CLASSES,
    **_OPTIONS,
    **_ARGUMENTS,
    "dray.train.torch": _TRAIN_TORCH,
    "dray.train.huggingface": _each("TransformersTrainer HuggingFaceTrainer", _gone(_WRAPPED)),
    "dray.train.lightning": _each("LightningTrainer LightningConfigBuilder", _gone(_WRAPPED)),
    "dray.train.xgboost": {"XGBoostPredictor": _gone(_PREDICT)},
    "dray.exceptions": {
        "NCCLHangError": _TRAIN["NCCLHangError"],
        **_each(
            "RAY_EXCEPTION_TYPES RayException", "catch RayError, which is the root of all of them"
        ),
    },
    "DataParallelTrainer()": _TRAINER,
    "JaxTrainer()": _TRAINER,
    **{f"{kind}Trainer()": _ANY_TRAINER for kind in ("LightGBM", "Tensorflow", "Torch", "XGBoost")},
    "LightGBMTrainer": {"get_model": _gone("call RayTrainReportCallback.get_model(checkpoint)")},
    "dray.train.lightgbm": {"LightGBMPredictor": _gone(_PREDICT)},
    "DataParallelTrainer": {
        **_each("restore can_restore", _gone(_SAME_NAME)),
        "as_trainable": _gone("call fit() in a trial of Ray Tune, as docs/sweeps.md shows"),
    },
    "XGBoostTrainer": {"get_model": _gone("call RayTrainReportCallback.get_model(checkpoint)")},
    "Backend": {"has_replica_groups": "all workers of a run restart together; leave it False"},
    "RunConfig()": {
        "sync_config": _gone(_EACH_REPORT),
        "verbose": _gone("set LoggingConfig(log_level=...), or DRAY_PROGRESS=0 for no output"),
        "stop": _gone("return from the train function at the epoch or metric that you want"),
        "progress_reporter": _gone("write a UserCallback: after_report() gets every report"),
        "log_to_file": _gone("each worker's output is in the run's directory, below logs/"),
    },
    "RunConfig": {"storage_context": "ask get_context().get_storage() in the train function"},
    "ScalingConfig": {
        "as_placement_group_factory": f"{_OF_TUNE}; plan() of a trainer shows each worker's node",
        "from_placement_group_factory": f"{_OF_TUNE}; name what each worker needs instead",
    },
    "FailureConfig()": {
        "fail_fast": _gone(f"{_OF_TUNE}; max_failures=0 ends the run at the first failure"),
        "controller_failure_limit": Absent(
            "an error in the driver itself (a callback, the disk) ends the run; call fit() "
            "again under the same RunConfig(name=...) to continue",
            unset=(-1, 0),
        ),
    },
    "Checkpoint": {
        **_each(
            "from_dict to_dict from_bytes to_bytes from_uri to_uri",
            _gone("write files into a directory, and pass Checkpoint.from_directory(path)"),
        ),
        **_each("get_preprocessor set_preprocessor", _BESIDE_MODEL),
    },
    "CheckpointConfig()": {
        "checkpoint_frequency": _gone("call report() with a checkpoint as often as you want one"),
        "checkpoint_at_end": _gone("call report() with a checkpoint at the function's end"),
    },
    "Result": {"config": _gone("keep the train_loop_config in your program")},
    "TrainContext": {
        "get_metadata": _gone(_IN_CONFIG),
        **_each(
            "get_trial_name get_trial_id",
            _gone(f"{_OF_TUNE}; get_experiment_name() is the run's name"),
        ),
        "get_trial_resources": _gone(f"{_OF_TUNE}; see ScalingConfig for them"),
        "get_trial_dir": _gone(
            f"{_OF_TUNE}; get_storage().experiment_fs_path is the run's directory"
        ),
    },
}

TABLE: Mapping[str, Mapping[str, Absent]] = {
    owner: {
        name: entry if isinstance(entry, Absent) else Absent(entry)
        for name, entry in entries.items()
    }
    for owner, entries in _TABLE.items()
}
