"""What CreateTrainingJob and the toolkit allow, beyond the types of single members (`members.py`)."""
