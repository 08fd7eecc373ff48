"""Jobs on a Kubernetes cluster: HyperPodPyTorchJob, or Kubeflow's PyTorchJob."""
