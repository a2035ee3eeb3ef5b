"""KV of prompts' beginnings outside this process: kept for restarts, and shared by replicas."""
