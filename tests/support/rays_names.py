"""The public names of Ray 2.60, for the test that goes through all of them.

Names only: modules with what they export, submodules, members of classes, arguments of functions.
"""

from __future__ import annotations

# Module to the names that programs import from it.
EXPORTS = {
    "dray.train": (
        "get_checkpoint get_context get_dataset_shard report BackendConfig Checkpoint "
        "CheckpointConfig DataConfig FailureConfig Result RunConfig ScalingConfig "
        "SyncConfig TrainContext TrainingFailedError TRAIN_DATASET_KEY "
        "CheckpointUploadMode CheckpointConsistencyMode ControllerError NCCLHangError "
        "LoggingConfig PreemptionError PreemptionInfo ReportedCheckpoint "
        "ReportedCheckpointStatus UserCallback WorkerGroupError ValidationConfig "
        "ValidationFn ValidationTaskConfig get_all_reported_checkpoints "
        "get_preemption_info"
    ),
    "dray.train.torch": (
        "TorchTrainer TorchCheckpoint TorchConfig accelerate get_device get_devices "
        "prepare_model prepare_optimizer prepare_data_loader backward "
        "enable_reproducibility"
    ),
    "dray.data.iterator": (
        "ArrowBatchCollateFn CollateFn DataIterator NumpyBatchCollateFn PandasBatchCollateFn"
    ),
    "dray.train.collective": "broadcast_from_rank_zero barrier",
    "dray.train.context": "TrainContext get_context",
    "dray.train.trainer": "TrainingIterator",
    "dray.air.integrations.mlflow": "setup_mlflow",
    "dray.air.integrations.wandb": "setup_wandb",
    "dray.train.v2.jax": "JaxConfig JaxTrainer",
    "dray.train.backend": "Backend BackendConfig",
    "dray.train.huggingface.transformers": "RayTrainReportCallback prepare_trainer",
    "dray.train.v2.api.callback": "RayTrainCallback UserCallback",
    "dray.train.v2.api.exceptions": (
        "RayTrainError ControllerError NCCLHangError PreemptionError TrainingFailedError "
        "WorkerGroupError"
    ),
    "dray.train.lightning._lightning_utils": (
        "RayDDPStrategy RayFSDPStrategy RayDeepSpeedStrategy RayLightningEnvironment "
        "prepare_trainer RayTrainReportCallback"
    ),
    "dray.train.huggingface.transformers._transformers_utils": (
        "RayTrainReportCallback prepare_trainer"
    ),
    "dray.train.v2.xgboost.xgboost_trainer": "XGBoostTrainer",
    "dray.train.v2.xgboost.config": "XGBoostConfig",
    "dray.train.xgboost.config": "XGBoostConfig",
    "dray.train.xgboost._xgboost_utils": "RayTrainReportCallback",
    "dray.train.xgboost.xgboost_checkpoint": "XGBoostCheckpoint",
    "dray.train.v2.lightgbm.lightgbm_trainer": "LightGBMTrainer",
    "dray.train.lightgbm.config": "get_network_params LightGBMConfig",
    "dray.train.lightgbm._lightgbm_utils": "normalize_pandas_for_lightgbm RayTrainReportCallback",
    "dray.train.lightgbm.lightgbm_checkpoint": "LightGBMCheckpoint",
    "dray.train.v2.tensorflow.tensorflow_trainer": "TensorflowTrainer",
    "dray.train.tensorflow.config": "TensorflowConfig",
    "dray.train.tensorflow.tensorflow_checkpoint": "TensorflowCheckpoint",
    "dray.train.tensorflow.train_loop_utils": "prepare_dataset_shard",
    "dray.train.tensorflow.keras": "ReportCheckpointCallback",
    "dray.train.v2.horovod.horovod_trainer": "HorovodTrainer",
    "dray.train.horovod.config": "HorovodConfig",
    "dray.train.torch.xla.config": "TorchXLAConfig",
    "dray.train.torch.torch_checkpoint": "TorchCheckpoint",
    "dray": (
        "__version__ _config get_runtime_context autoscaler available_resources cancel "
        "client ClientBuilder cluster_resources get get_actor get_gpu_ids init "
        "is_initialized java_actor_class java_function cpp_function kill Language method "
        "nodes put remote shutdown timeline wait SCRIPT_MODE WORKER_MODE LoggingConfig "
        "actor data internal util widgets workflow ActorClassID ActorID NodeID JobID "
        "WorkerID FunctionID ObjectID ObjectRef ObjectRefGenerator "
        "DynamicObjectRefGenerator TaskID UniqueID PlacementGroupID"
    ),
    "dray.util": (
        "accelerators ActorPool as_completed disable_log_once_globally "
        "enable_periodic_logging iter log_once pdb placement_group placement_group_table "
        "get_placement_group get_current_placement_group get_node_instance_id "
        "get_node_ip_address map_unordered remove_placement_group ray_debugpy "
        "inspect_serializability collective connect disconnect register_serializer "
        "deregister_serializer list_named_actors"
    ),
    "dray.util.accelerators": (
        "tpu NVIDIA_TESLA_V100 NVIDIA_TESLA_P100 NVIDIA_TESLA_T4 NVIDIA_TESLA_P4 "
        "NVIDIA_TESLA_K80 NVIDIA_TESLA_A10G NVIDIA_L4 NVIDIA_A100 NVIDIA_A100_40G "
        "NVIDIA_A100_80G NVIDIA_H100 INTEL_MAX_1550 INTEL_MAX_1100 INTEL_GAUDI "
        "AMD_INSTINCT_MI100 AMD_INSTINCT_MI210 AMD_INSTINCT_MI250 AMD_INSTINCT_MI250x "
        "AMD_INSTINCT_MI300x AMD_RADEON_R9_200_HD_7900 AMD_RADEON_HD_7900 AWS_NEURON_CORE "
        "GOOGLE_TPU_V2 GOOGLE_TPU_V3 GOOGLE_TPU_V4 GOOGLE_TPU_V5P GOOGLE_TPU_V5LITEPOD "
        "GOOGLE_TPU_V6E GOOGLE_TPU_V7X METAX_C500 METAX_C550 MOBILINT_ARIES "
        "MOBILINT_REGULUS APPLE_M1 APPLE_M1_PRO APPLE_M1_MAX APPLE_M1_ULTRA APPLE_M2 "
        "APPLE_M2_PRO APPLE_M2_MAX APPLE_M2_ULTRA APPLE_M3 APPLE_M3_PRO APPLE_M3_MAX "
        "APPLE_SILICON NVIDIA_TESLA_A100"
    ),
    "dray.util.placement_group": (
        "PlacementGroup placement_group placement_group_table get_placement_group "
        "get_current_placement_group remove_placement_group "
        "VALID_PLACEMENT_GROUP_STRATEGIES"
    ),
    "dray.util.scheduling_strategies": (
        "PlacementGroupSchedulingStrategy NodeAffinitySchedulingStrategy "
        "NodeLabelSchedulingStrategy In NotIn Exists DoesNotExist"
    ),
    "dray.util.queue": "Queue Empty Full",
    "dray.util.actor_pool": "ActorPool",
    "dray.exceptions": (
        "ActorAlreadyExistsError ActorDiedError ActorHandleNotFoundError "
        "ActorPlacementGroupRemoved ActorUnavailableError ActorUnschedulableError "
        "AsyncioActorExit AuthenticationError CrossLanguageError GetTimeoutError "
        "LocalRayletDiedError NodeDiedError ObjectFetchTimedOutError ObjectFreedError "
        "ObjectLostError ObjectReconstructionFailedError ObjectRefStreamEndOfStreamError "
        "ObjectStoreFullError OufOfBandObjectRefSerializationException OutOfDiskError "
        "OutOfMemoryError OwnerDiedError PendingCallsLimitExceeded "
        "PlasmaObjectNotAvailable RAY_EXCEPTION_TYPES RayActorError "
        "RayCgraphCapacityExceeded RayChannelError RayChannelTimeoutError "
        "RayDirectTransportError RayError RayException RaySystemError RayTaskError "
        "ReferenceCountingAssertionError RpcError RuntimeEnvSetupError "
        "StreamingGeneratorReplayInconsistentError TaskCancelledError "
        "TaskPlacementGroupRemoved TaskUnschedulableError UnserializableException "
        "UserCodeException WorkerCrashedError"
    ),
    "dray.runtime_env": "RuntimeEnvConfig RuntimeEnv",
    "dray.util.state": (
        "get_actor get_log get_node get_objects get_placement_group get_task get_worker "
        "get_job list_actors list_jobs list_nodes list_placement_groups list_tasks "
        "list_workers list_objects list_runtime_envs list_logs list_cluster_events "
        "summarize_actors summarize_objects summarize_tasks StateApiClient"
    ),
    "dray.util.annotations": "Deprecated DeveloperAPI PublicAPI",
    "dray.util.metrics": "Counter Histogram Gauge",
    "dray.util.multiprocessing": "Pool TimeoutError JoinableQueue",
    "dray.util.dask": (
        "ProgressBarCallback RayDaskCallback dataframe_optimize disable_dask_on_ray "
        "enable_dask_on_ray local_ray_callbacks ray_dask_get ray_dask_get_sync ray_dask_persist "
        "unpack_ray_callbacks"
    ),
    "dray.util.joblib": "register_ray",
    "dray.experimental.tqdm_ray": "tqdm safe_print",
    "dray.data.expressions": (
        "col lit udf pyarrow_udf download star unnest uuid random monotonically_increasing_id Expr "
        "ColumnExpr LiteralExpr BinaryExpr UnaryExpr UDFExpr AliasExpr StarExpr"
    ),
}

# Package to its submodules.
SUBMODULES = {
    "dray": (
        "_private _raylet actor air autoscaler client_builder cloudpickle cluster_utils "
        "core cross_language dag dashboard data exceptions experimental internal "
        "job_config job_submission llm remote_function rllib runtime_context runtime_env "
        "scripts serve train tune types util widgets workflow"
    ),
    "dray.util": (
        "accelerators actor_group actor_pool annotations check_open_ports check_serialize "
        "client client_connect collective common dask debug debugpy helpers horovod iter "
        "iter_metrics joblib lightgbm metrics multiprocessing placement_group queue rpdb "
        "scheduling_strategies serialization serialization_addons sgd spark state timer "
        "tpu tracing xgboost"
    ),
    "dray.train": (
        "backend base_trainer collective constants context data_parallel_trainer error "
        "horovod huggingface lightgbm lightning session tensorflow torch trainer utils v2 "
        "xgboost"
    ),
    "dray.train.v2.api": (
        "callback config context data_parallel_trainer exceptions preemption "
        "report_config reported_checkpoint result train_fn_utils validation_config"
    ),
}

# Class to its public members.
MEMBERS = {
    "dray.ObjectRef": (
        "as_future binary call_site from_binary from_hex from_random future hex is_nil "
        "job_id nil owner_address redis_shard_hash size task_id tensor_transport"
    ),
    "dray.ObjectRefGenerator": (
        "aclose asend athrow close completed is_finished next_ready send throw"
    ),
    "dray.runtime_context.RuntimeContext": (
        "actor_id current_actor current_placement_group_id gcs_address get "
        "get_accelerator_ids get_actor_id get_actor_name get_assigned_resources "
        "get_job_id get_node_id get_node_labels get_placement_group_id get_resource_ids "
        "get_runtime_env_string get_session_name get_task_function_name get_task_id "
        "get_task_name get_temp_dir get_worker_id is_canceled job_id namespace node_id "
        "runtime_env should_capture_child_tasks_in_placement_group task_id "
        "was_current_actor_reconstructed"
    ),
    "dray.util.placement_group.PlacementGroup": (
        "bundle_count bundle_specs empty is_empty ready wait"
    ),
    "dray.util.queue.Queue": (
        "empty full get get_async get_nowait get_nowait_batch put put_async put_nowait "
        "put_nowait_batch qsize shutdown size"
    ),
    "dray.util.actor_pool.ActorPool": (
        "get_next get_next_unordered has_free has_next map map_unordered pop_idle push submit"
    ),
    "dray.exceptions.RayError": "from_bytes from_ray_exception to_bytes",
    "dray.exceptions.RayTaskError": (
        "as_instanceof_cause from_bytes make_dual_exception_instance to_bytes"
    ),
    "dray.exceptions.ActorDiedError": (
        "BASE_ERROR_MSG actor_init_failed from_bytes from_task_error preempted"
    ),
    "dray.runtime_env.RuntimeEnv": (
        "clear conda_config conda_env_name conda_uri copy deserialize env_vars fromkeys "
        "get get_extension has_conda has_pip has_py_container has_uv has_working_dir "
        "image_uri items java_jars keys nsight pip_config pip_uri plugin_uris plugins pop "
        "popitem py_container_image py_container_run_options py_container_worker_path "
        "py_executable py_modules py_modules_uris rocprof_sys serialize set setdefault "
        "to_dict update uv_config uv_uri values virtualenv_name working_dir "
        "working_dir_uri"
    ),
    "dray.util.metrics.Counter": "inc info set_default_tags",
    "dray.util.metrics.Gauge": "info set set_default_tags",
    "dray.util.metrics.Histogram": "info observe set_default_tags",
    "dray.actor.ActorClass": "_remote bind options remote",
    "dray.actor.ActorMethod": "_remote bind options remote",
    "dray.remote_function.RemoteFunction": "_remote bind options",
}

# Function or class to the names of its parameters.
ARGUMENTS = {
    "dray.init": (
        "address num_cpus num_gpus resources labels object_store_memory local_mode "
        "ignore_reinit_error include_dashboard dashboard_host dashboard_port job_config "
        "configure_logging logging_level logging_format logging_config log_to_driver "
        "namespace runtime_env enable_resource_isolation cgroup_path system_reserved_cpu "
        "system_reserved_memory proxy_server_url _enable_object_reconstruction "
        "_plasma_directory object_spilling_directory _node_ip_address "
        "_driver_object_store_memory _memory _redis_username _redis_password _temp_dir "
        "_metrics_export_port _system_config _tracing_startup_hook _node_name "
        "_skip_env_hook"
    ),
    "dray.get": "object_refs timeout _use_object_store",
    "dray.put": "value _owner _tensor_transport",
    "dray.wait": "ray_waitables num_returns timeout fetch_local",
    "dray.cancel": "ray_waitable force recursive",
    "dray.kill": "actor no_restart",
    "dray.get_actor": "name namespace",
    "dray.shutdown": "wait_for_processes _exiting_interpreter",
    "dray.util.as_completed": "refs chunk_size yield_obj_refs",
    "dray.util.map_unordered": "fn items backpressure_size chunk_size yield_obj_refs",
    "dray.util.get_node_ip_address": "address",
    "dray.util.log_once": "key",
    "dray.util.inspect_serializability": "base_obj name depth print_file",
    "dray.util.register_serializer": "cls serializer deserializer",
    "dray.util.deregister_serializer": "cls",
    "dray.util.list_named_actors": "all_namespaces",
    "dray.util.placement_group": (
        "bundles strategy name lifetime _soft_target_node_id bundle_label_selector "
        "topology_strategy"
    ),
    "dray.util.placement_group_table": "placement_group",
    "dray.util.get_placement_group": "placement_group_name",
    "dray.util.remove_placement_group": "placement_group",
    "dray.util.scheduling_strategies.PlacementGroupSchedulingStrategy": (
        "placement_group placement_group_bundle_index placement_group_capture_child_tasks"
    ),
    "dray.util.scheduling_strategies.NodeAffinitySchedulingStrategy": (
        "node_id soft _spill_on_unavailable _fail_on_unavailable"
    ),
    "dray.util.scheduling_strategies.NodeLabelSchedulingStrategy": "hard soft",
    "dray.util.queue.Queue": "maxsize actor_options",
    "dray.util.actor_pool.ActorPool": "actors",
    "dray.util.state.list_actors": (
        "address filters limit timeout detail raise_on_missing_output _explain"
    ),
    "dray.util.state.list_tasks": (
        "address filters limit timeout detail raise_on_missing_output _explain"
    ),
    "dray.util.state.list_nodes": (
        "address filters limit timeout detail raise_on_missing_output _explain"
    ),
    "dray.util.state.list_placement_groups": (
        "address filters limit timeout detail raise_on_missing_output _explain"
    ),
    "dray.util.state.list_workers": (
        "address filters limit timeout detail raise_on_missing_output _explain"
    ),
    "dray.util.state.list_objects": (
        "address filters limit timeout detail raise_on_missing_output _explain"
    ),
    "dray.util.state.list_jobs": (
        "address filters limit timeout detail raise_on_missing_output _explain"
    ),
    "dray.util.state.get_worker": "id address timeout _explain",
    "dray.util.state.get_objects": "id address timeout _explain",
    "dray.util.state.get_job": "id address timeout _explain",
    "dray.util.state.get_actor": "id address timeout _explain",
    "dray.util.state.get_task": "id address timeout _explain",
    "dray.util.state.get_node": "id address timeout _explain",
    "dray.util.state.get_placement_group": "id address timeout _explain",
    "dray.util.state.summarize_actors": "address timeout raise_on_missing_output _explain",
    "dray.util.state.summarize_tasks": "address timeout raise_on_missing_output _explain",
    "dray.util.state.summarize_objects": "address timeout raise_on_missing_output _explain",
    "dray.util.metrics.Counter": "name description tag_keys",
    "dray.util.metrics.Gauge": "name description tag_keys",
    "dray.util.metrics.Histogram": "name description boundaries tag_keys",
    "dray.runtime_env.RuntimeEnvConfig": "setup_timeout_seconds eager_install log_files",
}

# What `.options()` takes.
OPTIONS = {
    "tasks": (
        "_generator_backpressure_num_objects _labels _num_objects_per_yield "
        "accelerator_type enable_task_events fallback_strategy label_selector max_calls "
        "max_retries memory name num_cpus num_gpus num_returns object_store_memory "
        "placement_group placement_group_bundle_index placement_group_capture_child_tasks "
        "resources retry_exceptions runtime_env scheduling_strategy"
    ),
    "actors": (
        "_actor_generator_backpressure_num_objects _labels accelerator_type "
        "allow_out_of_order_execution concurrency_groups enable_task_events "
        "enable_tensor_transport fallback_strategy get_if_exists label_selector lifetime "
        "max_concurrency max_pending_calls max_restarts max_task_retries memory name "
        "namespace num_cpus num_gpus object_store_memory placement_group "
        "placement_group_bundle_index placement_group_capture_child_tasks resources "
        "runtime_env scheduling_strategy"
    ),
}
