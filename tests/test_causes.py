"""The cause of a failure: each known text has its own row, and a cause outranks what follows from it."""

import pytest

from launcher import causes
from launcher.causes.table import Role
from launcher.common import redaction
from launcher.model.job_spec import LogLine

DISK = "OSError: [Errno 28] No space left on device"
TEXTS = {
    "cuda_oom": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.14 GiB. GPU 3 has a total capacity of",
        "RuntimeError: CUDA out of memory. Tried to allocate 96.00 MiB (GPU 1; 39.59 GiB total capacity",
    ),
    "ray_oom": (
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed",
    ),
    "host_oom_kernel": (
        "Reason:       OOMKilled",
        "was killed by the kernel, oom_kill 1 in its cgroup",
        "Memory cgroup out of memory: Killed process 4711 (python)",
    ),
    "host_oom_slurm": (
        "slurmstepd: error: Detected 2 oom_kill events in StepId=4711.0. Some tasks have been OOM Killed.",
        "FAILED: OUT_OF_MEMORY",
    ),
    "shared_memory": (
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that",
        "was killed by SIGBUS",
    ),
    "host_memory": (
        "MemoryError",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate",
        "OSError: [Errno 12] Cannot allocate memory",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to",
    ),
    "ray_object_store": ("ray.exceptions.ObjectStoreFullError: Failed to put object, the object store is full",),
    "vllm_kv_cache": (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    ),
    "vllm_gpu_share": (
        "ValueError: Free memory on device (3/79 GiB) on startup is less than desired GPU memory utilization (0.6",
    ),
    "no_space": (
        "OSError: [Errno 28] No space left on device: '/checkpoints/step_200'",
        'IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })',
    ),
    "disk_quota": ("OSError: [Errno 122] Disk quota exceeded: '/home/a/.cache'",),
    "file_size_limit": ("OSError: [Errno 27] File too large", "was killed by SIGXFSZ"),
    "read_only": ("OSError: [Errno 30] Read-only file system: '/data/cache'",),
    "disk_error": ("OSError: [Errno 5] Input/output error", "OSError: [Errno 116] Stale file handle"),
    "permission": ("PermissionError: [Errno 13] Permission denied: '/fsx/checkpoints'",),
    "s3_denied": (
        "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the GetObject operation",
    ),
    "s3_missing": (
        "An error occurred (NoSuchBucket) when calling the ListObjectsV2 operation: The specified bucket does not",
        "An error occurred (404) when calling the HeadObject operation: Not Found",
    ),
    "checkpoint_unwritten": (
        "RuntimeError: [enforce fail at inline_container.cc:595] . PytorchStreamWriter failed writing file data/3",
    ),
    "hf_gated": ("Cannot access gated repo for url https://huggingface.co/meta-llama/x/resolve/main/config.json.",),
    "data_missing": (
        "FileNotFoundError: Couldn't find any data file at /data/train.",
        "launcher.runtime.finetune.data.errors.DataError: /data/x: no such file or folder of training samples",
    ),
    "data_field": ("KeyError: 'chosen'",),
    "data_columns": (
        "ValueError: Column name ['answer'] not in the dataset. Current columns in the dataset: ['question']",
    ),
    "data_empty": ("SchemaInferenceError: Please pass `features` or at least one example when writing data",),
    "data_damaged": (
        "json.decoder.JSONDecodeError: Expecting ',' delimiter: line 1 column 90 (char 89)",
        "pyarrow.lib.ArrowInvalid: JSON parse error: Missing a closing quotation mark in string.",
    ),
    "prompt_too_long": ("NotImplementedError: sequence_length=5120 is larger than self.max_length=4096",),
    "chat_template": ("ValueError: Cannot use chat template functions because tokenizer.chat_template is not set",),
    "hf_unknown": (
        "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.",
        "OSError: meta/lama is not a local folder and is not a valid model identifier listed on",
    ),
    "hf_offline": ("OSError: We couldn't connect to 'https://huggingface.co' to load the files",),
    "aws_credentials": ("botocore.exceptions.NoCredentialsError: Unable to locate credentials",),
    "weights_damaged": ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",),
    "weights_shape": (
        "size mismatch for lm_head.weight: copying a param with shape torch.Size([32000, 4096]) from checkpoint",
    ),
    "checkpoint_keys": ("RuntimeError: Missing key in checkpoint state_dict: optimizer.param_groups.0.lr",),
    "checkpoints_damaged": (
        "launcher.runtime.checkpoint_search.CheckpointBroken: no checkpoint is intact: step-18: a checksum differs",
    ),
    "not_finite": (
        "{'loss': nan, 'grad_norm': nan, 'epoch': 0.1}",
        "step 200 loss: NaN",
        "launcher.runtime.finite_steps.NotFinite: the last 4 steps up to step 9 were skipped: loss nan",
        "exited with code 65 (its loss, gradients or weights are not finite)",
    ),
    "loss_scale": ("Exception: Current loss scale already at minimum - cannot decrease scale anymore.",),
    "port_in_use": (
        "RuntimeError: The server socket has failed to listen on any local network address. name: EADDRINUSE",
        "OSError: [Errno 98] Address already in use",
    ),
    "rendezvous_clients": (
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.",
    ),
    "rendezvous": ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",),
    "name_resolution": ("socket.gaierror: [Errno -3] Temporary failure in name resolution",),
    "module_missing": ("ModuleNotFoundError: No module named 'flash_attn'",),
    "binary_mismatch": (
        "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZNK3c105Error4whatEv",
        "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory",
    ),
    "flash_attention": (
        "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following",
    ),
    "ray_environment": ("ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.",),
    "unknown_argument": (
        "main.py: error: unrecognized arguments: --lora-rank 8",
        "hyperpodrun.py: error: ambiguous option: --log could match --log-dir, --log_dir, --logs-specs, --logs_specs",
        "train.py: error: argument --steps: invalid int value: 'x'",
        "train.py: error: the following arguments are required: --data",
        "train.py: error: one of the arguments -a -b is required",
        "omegaconf.errors.ConfigAttributeError: Key 'rollouts' is not in struct",
    ),
    "verl_batch": (
        "AssertionError: real_train_batch_size (10) must be divisible by minimal possible batch size (8)",
    ),
    "ray_gpus": ("ValueError: Total available GPUs 8.0 is less than total desired GPUs 32",),
    "gpu_memory_error": (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "NVRM: Xid (PCI:0000:10:1c): 94, pid=812, Contained: SM (0x1)",
    ),
    "gpu_lost": ("NVRM: Xid (PCI:0000:04:00): 79, GPU has fallen off the bus.",),
    "gpu_driver": ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",),
    "gpu_absent": ("RuntimeError: No CUDA GPUs are available", "RuntimeError: CUDA error: invalid device ordinal"),
    "gpu_kernel": ("RuntimeError: CUDA error: no kernel image is available for execution on the device",),
    "gpu_shared": ("Duplicate GPU detected : rank 5 and rank 4 both on CUDA device 101c0",),
    "device_assert": ("RuntimeError: CUDA error: device-side assert triggered",),
    "illegal_access": ("RuntimeError: CUDA error: an illegal memory access was encountered",),
    "efa_absent": ("find_ofi_provider:611 NCCL WARN NET/OFI Couldn't find any optimal provider",),
    "efa_unusable": ("nccl_net_ofi_rdma_init:7012 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data",),
    "image_access": ("pull access denied, repository does not exist or may require authorization",),
    "image_pull": ("Warning  Failed  2m  kubelet  Error: ErrImagePull",),
    "image_start": ("exec /usr/bin/python3: exec format error",),
    "pod_configuration": ('CreateContainerConfigError: secret "hf-token" not found',),
    "queue_quota": (
        "couldn't assign flavors to pod set workers: insufficient unused quota for nvidia.com/gpu, 8 more",
    ),
    "unschedulable": ("0/12 nodes are available: 12 Insufficient vpc.amazonaws.com/efa.",),
    "account_limit": ("An error occurred (ResourceLimitExceeded) when calling the CreateTrainingJob operation",),
    "no_capacity": ("CapacityError: Unable to provision requested ML compute capacity.",),
    "no_event_left": ("the job waits for nodes, and no remaining event can bring them",),
    "preempted_slurm": (
        "slurmstepd: error: *** JOB 88 ON n4 CANCELLED AT 2026-01-02T03:04:05 DUE TO PREEMPTION ***",
    ),
    "preempted_kubernetes": ("Preempted to accommodate a workload (UID: 1b) due to prioritization in the queue",),
    "evicted": ("The node was low on resource: memory. Threshold quantity: 100Mi, available: 60Mi.",),
    "time_limit_slurm": (
        "slurmstepd: error: *** JOB 88 ON n4 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***",
    ),
    "time_limit": ("max runtime exceeded: the job ran longer than MaxRuntimeInSeconds",),
    "node_failed_slurm": (
        "slurmstepd: error: *** STEP 88.0 ON n4 CANCELLED AT 2026-01-02T03:04:05 DUE TO NODE FAILURE, SEE SLURMCTLD",
    ),
    "open_files": ("OSError: [Errno 24] Too many open files",),
    "processes": ("RuntimeError: can't start new thread",),
    "terminal_closed": ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 88 got signal: 1",),
    "hang": ("hang: no new step for 93 s; 60 s are expected",),
    "file_missing": ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.jsonl'",),
    "rate_limit": ("huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://x",),
    "collective_timeout": (
        "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=81, OpType=_ALLGATHER_BASE, Timeout",
    ),
    "nccl_system": ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device",),
    "nccl_remote": ("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",),
    "nccl_cuda": ("ncclUnhandledCudaError: Call to CUDA function failed.",),
    "efa_request": ("NCCL WARN NET/OFI Request completed with error. RC: 113. Error: unreachable",),
    "data_worker": ("RuntimeError: DataLoader worker (pid(s) 311, 312) exited unexpectedly",),
    "crashed": ("was killed by SIGSEGV", "Fatal Python error: Segmentation fault"),
    "killed": ("was killed by SIGKILL", "failed (exitcode: -9) local_rank: 1 (pid: 900) of binary: python"),
    "node_lost": ("node 2: its agent ended", "node 1: its agent does not answer"),
    "actor_died": ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",),
    "refused": ("ConnectionRefusedError: [Errno 111] Connection refused",),
    "store_unreachable": (
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect",
    ),
    "peer_lost": (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection reset by peer [10.0.0.4]:4711",
    ),
    "stopped": ("torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers",),
    "aborted": ("terminate called after throwing an instance of 'c10::DistBackendError'",),
    "reported": ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",),
}
"""A text of the form of each row, by the row."""
OTHER_WORDINGS = {
    "cuda_oom": (
        "torch.AcceleratorError: CUDA error: out of memory",
        "RuntimeError: CUDA error: out of memory",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU",
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity;",
        "RuntimeError: NPU out of memory. Tried to allocate",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)",
        "RuntimeError: cudaErrorMemoryAllocation: out of memory",
    ),
    "host_oom_kernel": (
        "  Last State: Terminated  Reason: OOMKilled  Exit Code: 137",
        "pod-0: OOMKilled, exit code 137 (SIGKILL)",
        '"reason": "OOMKilled",',
        "python invoked oom-killer: gfp_mask=0xcc0",
        "Out of memory: Killed process 4711 (python3) total-vm:1",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)",
    ),
    "host_oom_slurm": (
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0",
        "slurmstepd: error: Exceeded job memory limit at some point.",
        "slurmstepd: error: Job 123 exceeded memory limit (2000 > 1000), being killed",
        "srun: error: node1: task 3: Out Of Memory",
    ),
    "killed": (
        "  exitcode  : -9 (pid: 4711)",
        "  traceback : Signal 9 (SIGKILL) received by PID 4711",
        "exitcode: -9",
        "/opt/run.sh: line 3:    88 Killed                  python train.py",
        "command terminated with exit code 137",
        "subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGKILL: 9>.",
        "srun: error: node1: task 3: Killed",
        "ERROR: failed (exitcode: -9) local_rank: 0",
    ),
    "crashed": (
        "  exitcode  : -11 (pid: 4711)",
        "/opt/run.sh: line 3:    88 Segmentation fault      (core dumped) python train.py",
        "*** Process received signal *** Signal: Segmentation fault (11)",
        "Fatal Python error: Bus error",
        "Illegal instruction (core dumped)",
    ),
    "shared_memory": (
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory.",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared "
        "memory (shm).",
        "RuntimeError: unable to write to file </torch_123>: No space left on device (28)",
        "RuntimeError: unable to open shared memory object </torch_1> in read-write mode: Too many open files (24)",
    ),
    "collective_timeout": (
        "[rank2]:[E102 03:04:05.678 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=81, OpType=ALLREDUCE",
        "[Rank 0] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out "
        "waiting 1800000ms for recv operation to complete",
        "[Rank 3] Timeout at NCCL work: 81, last enqueued NCCL work",
    ),
    "nccl_system": (
        "torch.distributed.DistBackendError: NCCL error in: "
        "../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, unhandled system error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.18.1",
        "RuntimeError: NCCL Error 2: unhandled system error",
    ),
    "nccl_remote": (
        "torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:317, remote process exited "
        "or there was a network error, NCCL version 2.20.5",
        "node1:12:34 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4711> with status=12 "
        "opcode=0 len=0 vendor err 129",
        "NET/IB: Got completion from peer 10.0.0.1 with error 12",
    ),
    "nccl_cuda": (
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details)",
    ),
    "efa_absent": ("algo-1:12:34 [0] find_ofi_provider:611 NCCL WARN NET/OFI Could not find any optimal provider",),
    "peer_lost": (
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "RuntimeError: Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "NCCL communicator was aborted on rank 3.",
        "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via "
        "c10d key-value store by key '0', but store->get('0') got error: Connection was likely closed. "
        "Did the remote server shutdown or crash?",
        "RuntimeError: recvValueWithTimeout failed on SocketImpl(fd=5, addr=[a]:1): failed to recv, got 0 bytes",
        "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.4]:4711",
        "http.client.RemoteDisconnected: Remote end closed connection without response",
    ),
    "rendezvous_clients": (
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
        "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cuda//0",
    ),
    "store_unreachable": (
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying "
        "to connect to (10.0.0.1, 29500).",
    ),
    "rendezvous": (
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d "
        "store has failed.",
    ),
    "port_in_use": (
        "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - "
        "Address already in use).",
        "RuntimeError: The server socket has failed to listen on any local network address. The server "
        "socket has failed to bind to ?UNKNOWN? (errno: 98 - Address already in use).",
    ),
    "stopped": (
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15",
        "Received 15 death signal, shutting down workers",
        "  exitcode  : -15 (pid: 4711)",
        "W0102 Received Signals.SIGTERM death signal, shutting down workers",
        "slurmstepd: error: *** STEP 88.0 ON n4 CANCELLED AT 2026-01-02T03:04:05 ***",
    ),
    "terminal_closed": ("SignalException: Process 9 got signal: 1",),
    "no_space": (
        "OSError: [Errno 28] No space left on device: '/tmp/x' -> '/y'",
        "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: "
        'StorageFull, message: "No space left on device" })',
        "RuntimeError: Data processing error: CAS service error : IO Error: No space left on device (os error 28)",
        "write /var/lib/containerd/x: no space left on device",
        "npm ERR! code ENOSPC",
    ),
    "disk_quota": (
        "OSError: [Errno 122] Disk quota exceeded",
        "Disk quota exceeded (os error 122)",
    ),
    "permission": (
        "mkdir: cannot create directory '/fsx/x': Permission denied",
        "PermissionError: [Errno 13] Permission denied: '/root/.cache'",
        "bash: /opt/run.sh: Permission denied",
    ),
    "s3_denied": (
        "botocore.exceptions.ClientError: An error occurred (403) when calling the HeadObject operation: Forbidden",
        "An error occurred (AccessDenied) when calling the PutObject operation: User: arn:aws:sts::1:x "
        "is not authorized to perform: s3:PutObject",
    ),
    "data_missing": (
        "FileNotFoundError: Unable to find '/data/train.jsonl'",
        "datasets.exceptions.DatasetNotFoundError: Dataset 'x/y' doesn't exist on the Hub or cannot be accessed.",
    ),
    "hf_gated": (
        "datasets.exceptions.DatasetNotFoundError: Dataset 'x/y' is a gated dataset on the Hub. You "
        "must be authenticated to access it.",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-x)",
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/models/x",
        "OSError: You are trying to access a gated repo.",
    ),
    "hf_unknown": (
        "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1-x)",
        "huggingface_hub.errors.RevisionNotFoundError: 404 Client Error.",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
        "'namespace/repo_name': '/fsx/model'",
    ),
    "hf_offline": (
        "requests.exceptions.ConnectionError: "
        "(MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded "
        "with url: /x",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find "
        "them in the cached files.",
    ),
    "aws_credentials": (
        "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the PutObject "
        "operation: The provided token has expired.",
    ),
    "data_field": (
        "KeyError: 'messages'",
        "KeyError: 'conversations'",
        'KeyError: "text"',
    ),
    "data_columns": ("KeyError: \"Column text not in the dataset. Current columns in the dataset: ['a']\"",),
    "weights_damaged": (
        "_pickle.UnpicklingError: invalid load key, 'v'.",
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file "
        "not fully covered",
    ),
    "weights_shape": (
        "\tsize mismatch for model.embed_tokens.weight: copying a param with shape torch.Size([32000, "
        "4096]) from checkpoint",
    ),
    "checkpoint_keys": (
        '\tMissing key(s) in state_dict: "lm_head.weight".',
        '\tUnexpected key(s) in state_dict: "x".',
    ),
    "not_finite": (
        "{'train_loss': nan}",
        "epoch 3 train_loss=nan",
        "Loss is nan, stopping training",
        "loss: tensor(nan, device='cuda:0')",
        "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it "
        "cannot be clipped.",
        "RuntimeError: Rank 3: found NaN in local grad norm in backward pass before data-parallel "
        "communication collective.",
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
        "iteration 100 | lm loss: nan | grad norm: nan",
        "loss=inf",
        "'eval_loss': 'NaN'",
    ),
    "loss_scale": ("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",),
    "module_missing": (
        "/usr/bin/python: No module named torch",
        "ModuleNotFoundError: No module named 'flash_attn.bert_padding'",
    ),
    "binary_mismatch": (
        "python: error while loading shared libraries: libcudart.so.12: cannot open shared object file: "
        "No such file or directory",
        "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by x)",
    ),
    "image_start": (
        "bash: torchrun: command not found",
        "/bin/sh: 1: torchrun: not found",
        'exec: "torchrun": executable file not found in $PATH: unknown',
    ),
    "gpu_absent": (
        "RuntimeError: CUDA error: no CUDA-capable device is detected",
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
    ),
    "device_assert": (
        "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1289: block: [0,0,0], thread: [0,0,0] Assertion "
        "`srcIndex < srcSelectDimSize` failed.",
    ),
    "illegal_access": (
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: unspecified launch failure",
    ),
    "gpu_memory_error": ("kernel: NVRM: Xid (PCI:0000:10:1c): 63, pid='<unknown>', name=<unknown>, Row Remapper",),
    "gpu_lost": ("NVRM: GPU at PCI:0000:04:00: GPU has fallen off the bus",),
    "rate_limit": (
        "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co",
        "huggingface_hub.errors.HfHubHTTPError: (Request ID: x) 429 Too Many Requests",
    ),
    "image_pull": (
        'Back-off pulling image "me/x:1"',
        'Failed to pull image "x": rpc error: code = NotFound desc = failed to resolve reference',
        "Error: ErrImageNeverPull",
    ),
    "image_access": ("401 Unauthorized: no basic auth credentials",),
    "unschedulable": ("0/5 nodes are available: 5 Insufficient nvidia.com/gpu. preemption: 0/5 nodes are available",),
    "evicted": (
        "Pod ephemeral local storage usage exceeds the total limit of containers 10Gi.",
        "Evicted: The node was low on resource: ephemeral-storage.",
        "The node had condition: [DiskPressure].",
    ),
    "time_limit_slurm": (
        "slurmstepd: error: *** JOB 88 ON n4 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***",
    ),
    "preempted_kubernetes": ("Preempted: Preempted to accommodate a workload",),
    "file_missing": ("python3: can't open file '/x/train.py': [Errno 2] No such file or directory",),
    "reported": ("  exitcode  : 1 (pid: 4711)",),
    "processes": (
        "OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 64: Resource temporarily unavailable",
    ),
    "open_files": ("OSError: [Errno 24] Too many open files: '/dev/null'",),
}
"""The same causes as other versions and programs write them."""
PREFIXES = (
    "2026-01-02 03:04:05,678 ",
    "2026-01-02T03:04:05.678901Z ",
    "[2026-01-02 03:04:05] ",
    "[rank3]: ",
    "\x1b[31m",
    "3: ",
    "worker-0: ",
    "algo-1: [rank3]: ",
    "[pod/job-0/main] ",
    "  10%|#  | 1/10\r",
    "E0102 03:04:05.123456 1234 torch/x.py:10] ",
    "[rank0]:E0102 03:04:05.123456 1234 torch/x.py:10] ",
    "[rank0]:2026-01-02 03:04:05 ",
    "[1,mpirank:3,algo-1]<stderr>:",
    "\x1b[36m(TaskRunner pid=99)\x1b[0m ",
)
"""What is before each line of a log, in the forms of loggers, launchers and clusters."""
REMARKS = (
    "WARNING: lower the batch size if CUDA out of memory occurs",
    "If you see CUDA out of memory, set PYTORCH_CUDA_ALLOC_CONF",
    "PermissionError: cannot write the cache, continuing without it",
    "caught torch.cuda.OutOfMemoryError: retrying with a smaller batch",
    "skipping step: loss: nan",
    "Address already in use, trying port 29501",
    "cache.py:3: UserWarning: [Errno 28] No space left on device",
    "flash_attn is not installed, falling back to sdpa",
)
"""Known texts in lines after which the program goes on."""


def line(text, rank=0, *, attempt=0, host=None, time_s=None, stream="stderr"):
    return LogLine("line", rank, text, attempt, host, time_s, stream)


def record(text, rank=None):
    return LogLine("fault", rank, text)


def traceback(*errors, rank=0, **fields):
    """Return the lines of a traceback for each error, each one the cause of the next."""
    texts = []
    for number, error in enumerate(errors):
        if number:
            texts.append("The above exception was the direct cause of the following exception:")
        texts += ["Traceback (most recent call last):", '  File "x.py", line 1, in <module>', "    raise it", error]
    return [line(text, rank, **fields) for text in texts]


def cause_of(*lines, records=()):
    found = causes.find(lines, records)
    return (found.cause.id if found.cause else None), found.first_error.text


def test_every_row_has_a_text_a_source_and_a_remedy():
    rows = [row.cause for row in causes.known()]
    assert [row.id for row in rows] == list(TEXTS)
    assert len(rows) >= 53
    assert all(row.source.startswith(("https://", "launcher/")) for row in rows)
    assert all(row.explanation.endswith(".") and row.remedy.endswith(".") for row in rows)


@pytest.mark.parametrize("row", TEXTS)
def test_a_text_matches_its_own_row_and_no_other(row):
    for text in TEXTS[row]:
        assert [causes.known()[number].cause.id for number in causes.matches()(text)] == [row], text
        found = causes.find([line(text)])
        assert found.cause.id == row
        assert found.first_error.text in text


@pytest.mark.parametrize(
    "text",
    [
        "Socker error: [Errno 11] Resource temporarily unavailable",
        "step 7/20  loss 2.314  lr 0.003",
        "WARNING: using nanobatches; loss: nano",
        "0 errors, 137 samples",
        "Saved checkpoint to /killed/by/name",
        "OOMKilled: false",
        '"OOMKilled": false,',
        "DiskPressure=False",
        "possible hang: none",
        "max runtime exceeded handler installed",
        "best_loss: inf, grad_norm: inf",
        "skip_nan_loss: false, loss=nan_to_num(loss)",
    ],
)
def test_benign_lines_match_no_row(text):
    assert causes.matches()(text) == []


def test_a_cause_outranks_symptoms_and_consequences_whatever_their_time():
    lost = traceback("RuntimeError: [gloo/tcp/pair.cc:1] Connection closed by peer", rank=1, time_s=1.0)
    nccl = traceback("torch.distributed.DistBackendError: ncclRemoteError: A call failed", rank=2, time_s=2.0)
    disk = traceback("OSError: [Errno 28] No space left on device", rank=3, time_s=3.0, host="n3")
    found = causes.find([*lost, *nccl, *disk])
    assert found.cause.id == "no_space"
    assert (found.first_error.rank, found.first_error.host, found.first_error.time_s) == (3, "n3", 3.0)
    assert [each.rank for each in found.consequences] == [1, 2]
    assert cause_of(*lost, *nccl)[0] == "nccl_remote"
    assert cause_of(*lost)[0] == "peer_lost"


@pytest.mark.parametrize("row", OTHER_WORDINGS)
def test_other_wordings_of_a_text_have_the_same_first_row(row):
    for text in OTHER_WORDINGS[row]:
        numbers = causes.matches()(text)
        assert numbers and causes.known()[numbers[0]].cause.id == row, text


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("stream", ["stdout", None])
def test_an_error_is_found_behind_any_prefix(prefix, stream):
    lost = line("Connection reset by peer", 0)
    for error, expected in (("shop.BadSample: no price", None), (DISK, "no_space")):
        lines = traceback(error, rank=1, stream=stream)
        assert cause_of(lost, *(each._replace(text=prefix + each.text) for each in lines)) == (expected, error)


def test_a_group_of_exceptions_has_the_known_cause_within_it():
    texts = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "x.py"',
        "  | ExceptionGroup: many",
    ]
    texts += ["  +-+--- 1 ---", "    | Traceback (most recent call last):", '    |   File "x.py"', f"    | {DISK}"]
    assert cause_of(*map(line, [*texts, "    +-----------"]))[0] == "no_space"


@pytest.mark.parametrize("remark", REMARKS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_remark_about_a_known_text_is_no_cause_but_of_a_job_without_any_other_error(remark, rank):
    lines = [line(remark, rank, stream="stdout"), line("step 2", rank, stream="stdout")]
    assert cause_of(*lines, *traceback("shop.BadSample: no price", rank=1)) == (None, "shop.BadSample: no price")
    assert cause_of(*lines, line("no such corpus")) == (None, "no such corpus")
    assert cause_of(*lines)[0] is not None


def test_the_advice_in_the_text_of_an_error_makes_it_no_remark():
    error = (
        "torch.OutOfMemoryError: CUDA out of memory. Retrying may help; set expandable_segments to avoid fragments"
    )
    assert cause_of(*traceback("OSError: Connection reset by peer", error)) == ("cuda_oom", error)


def event(text, host, time_s):
    return LogLine("event", None, text, host=host, time_s=time_s)


@pytest.mark.parametrize(
    ("text", "host", "after_s", "cause"),
    [
        ("FailedScheduling: 0/2 nodes are available: 2 Insufficient cpu.", "Pod/a", 1, None),
        ("FailedScheduling: 0/2 nodes are available: 2 Insufficient cpu.", "Pod/b", 1, "unschedulable"),
        ("FailedMount: MountVolume.SetUp failed", "Pod/a", 1, None),
        ("QuotaReserved: couldn't assign flavors to pod set workers", "Workload/w", 1, None),
        ("Evicted: The node was low on resource: memory.", "Pod/a", 30, "evicted"),
        ("Evicted: The node was low on resource: memory.", "Pod/a", 3600, None),
        ("Preempted: Preempted to accommodate a workload", "Workload/w", 3600, None),
    ],
)
def test_an_event_that_the_workers_have_survived_is_no_cause(text, host, after_s, cause):
    lines = traceback("shop.BadSample: no price", host="a", time_s=1000.0 + after_s)
    assert cause_of(*lines, records=[event(text, host, 1000.0)])[0] == cause
    assert cause_of(records=[event(text, host, 1000.0)])[0] is not None


def test_a_secret_is_in_no_failure(monkeypatch):
    token = "hf_" + "aZ9" * 12
    secret = "pa55Wörd-and-more"
    monkeypatch.setenv("DB_PASSWORD", secret)
    with redaction.session(redaction.Secrets()):
        text = f"OSError: [Errno 28] No space left on device: {token} {'x' * 220} {secret}"
        found = causes.find(traceback(text, rank=1), [record(f"its agent ended: {secret}")])
    assert found.cause.id == "no_space"
    for shown in (str(found), str(causes.to_data(found))):
        assert token[:9] not in shown and secret[:6] not in shown


def test_a_traceback_begins_behind_a_progress_bar():
    first, *rest = traceback("shop.BadSample: no price", rank=1, stream="stdout")
    bar = first._replace(text=" 50%|#####     | 5/10 [00:01<00:01, 1.0s/it]" + first.text)
    assert cause_of(line("Connection reset by peer", 0), bar, *rest) == (None, "shop.BadSample: no price")


def test_the_end_of_a_long_progress_bar_is_searched():
    assert cause_of(line("\r 10%|#  | 1/10" * 9000 + f"\r{DISK}"))[0] == "no_space"


def test_of_two_causes_the_earlier_one_counts():
    early = traceback("KeyError: 'prompt'", rank=5, time_s=10.0)
    late = traceback("OSError: [Errno 28] No space left on device", rank=0, time_s=11.0)
    assert cause_of(*late, *early)[0] == "data_field"


def test_an_unknown_exception_is_the_first_error_without_a_cause():
    lines = traceback("shop.BadSample: no price", rank=1) + traceback(
        "RuntimeError: Connection closed by peer", rank=0
    )
    assert cause_of(*lines) == (None, "shop.BadSample: no price")
    assert causes.find(lines).lines() == (("first error", "rank 1: shop.BadSample: no price"),)


def test_a_program_that_exits_with_a_message_has_that_as_its_first_error():
    lines = [line("loading"), line("no such corpus"), line("RuntimeError: Connection closed by peer", 1)]
    assert cause_of(*lines) == (None, "no such corpus")


def test_an_error_that_the_program_survived_does_not_hide_the_one_that_ended_it():
    early = [line("{'loss': nan}"), *(line(f"step {number}") for number in range(500))]
    assert cause_of(*early, *traceback("shop.BadSample: no price")) == (None, "shop.BadSample: no price")
    assert cause_of(*early)[0] == "not_finite"
    retried = [line("429 Client Error: Too Many Requests for url: x"), *traceback("shop.BadSample: no price")]
    assert cause_of(*retried) == (None, "shop.BadSample: no price")


def test_the_exception_of_a_chain_with_a_known_cause_is_its_first_error():
    lines = traceback("OSError: [Errno 28] No space left on device", "RuntimeError: the checkpoint failed")
    assert cause_of(*lines) == ("no_space", "OSError: [Errno 28] No space left on device")


def test_code_in_a_traceback_is_no_error():
    lines = [
        line("Traceback (most recent call last):"),
        line('    raise OSError(28, "No space left on device")'),
        line("ValueError: x"),
    ]
    assert cause_of(*lines) == (None, "ValueError: x")


def test_what_frameworks_write_before_a_line_is_left_out():
    for prefix in ("[rank3]: ", "[default0]:", "[1,3]<stderr>:", "(WorkerDict pid=88, ip=10.0.0.1) "):
        lines = traceback("shop.BadSample: no price")
        prefixed = [each._replace(text=prefix + each.text) for each in lines]
        assert cause_of(*prefixed) == (None, "shop.BadSample: no price"), prefix


def test_only_the_last_start_of_the_workers_counts():
    first = traceback("OSError: [Errno 28] No space left on device", attempt=0)
    last = traceback("KeyError: 'prompt'", attempt=1)
    assert cause_of(*last, *first)[0] == "data_field"
    other_host = traceback("OSError: [Errno 28] No space left on device", attempt=0, host="b", time_s=1.0)
    assert cause_of(*(each._replace(host="a") for each in last), *other_host)[0] == "no_space"


def test_a_kill_is_the_hosts_memory_only_with_a_proof():
    assert cause_of(records=[record("was killed by SIGKILL", 1)])[0] == "killed"
    assert cause_of(records=[record("was killed by the kernel, oom_kill 1 in its cgroup", 1)])[0] == "host_oom_kernel"
    found = causes.find(
        traceback("RuntimeError: Connection closed by peer", rank=0), [record("was killed by SIGKILL", 1)]
    )
    assert (found.cause.id, found.first_error.rank) == ("killed", 1)


def test_a_job_without_any_error_has_no_failure():
    assert causes.find([]) is None
    assert causes.find([LogLine("event", None, "OOMKilled")], [record("failed")]) is None


def test_a_failure_survives_being_written_down():
    found = causes.find(traceback("KeyError: 'prompt'", rank=3, time_s=1e9, host="n1") + traceback("ValueError: x"))
    assert causes.failure_from(causes.to_data(found)) == found
    assert causes.failure_from(causes.to_data(None)) is None
    assert str(found).startswith("first error: rank 3 on n1, 01:46:40 UTC: KeyError: 'prompt'\ncause: ")


def test_long_and_hostile_lines_are_bounded():
    found = causes.find([line("\x1b[31mOSError: [Errno 28] No space left on device\x1b[0m " + "x" * 10_000)])
    assert found.cause.id == "no_space"
    assert "\x1b" not in found.first_error.text
    assert len(found.first_error.text) == 300


def test_roles_are_ordered():
    roles = [row.role for row in causes.known()]
    assert roles == sorted(roles), "a row of a weaker role would hide one of a stronger role"
    assert Role.SYMPTOM in roles
    assert Role.CONSEQUENCE in roles


@pytest.mark.parametrize(
    "text",
    [
        "[rank0-restart0] 2026-11-29 21:03:01,123 [INFO] /x/ipc/client.py:184: connected",
        "[HyperPodElasticAgent] 2026-11-29T21:03:01Z [INFO] [rank0] restarts",
        "I1129 21:03:01.1 1 x.cpp:3] listens",
        "INFO: resumed",
    ],
)
def test_a_line_of_a_logger_is_no_first_error(text):
    assert causes.find([line("a message of its own"), line(text)]) is None
    assert causes.find([line(text), line("a message of its own")]).first_error.text == "a message of its own"
