from hypothesis import HealthCheck, settings

# On a machine that is shared, slow is not a failure.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")
