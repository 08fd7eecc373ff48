"""What a cluster of Kubernetes and its operators allow of a job, checked without asking one. A module per subject."""
