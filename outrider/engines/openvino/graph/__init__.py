"""From a GGUF file to compiled models: conversion, rewrites of the graph, compilation."""
