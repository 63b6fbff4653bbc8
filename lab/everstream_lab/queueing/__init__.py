"""The CCRR study of checkpoint intervals, reproduced with the queueing model."""
