"""Commands of the lab; the command line finds them by the entry points `rlinf_async.commands`."""
