"""Every parser of what peers and files say, fed with damaged input: it answers with a value or with
an error of ours, soon, and never with anything else."""
