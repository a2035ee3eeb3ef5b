"""What a GPU does with the engine `torch`, in one run of some minutes."""
