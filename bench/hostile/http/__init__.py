"""Attacks on the HTTP door, over HTTP/1.1, HTTP/2 and HTTP/3: a fixed number of requests each, the
same in every run, while two bystanders chat, one natively and one over HTTP."""
