"""Tests of jobs, executors and queues, without a tree."""
