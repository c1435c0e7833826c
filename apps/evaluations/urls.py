"""URLs of the pages of evaluations, suites, tasks, episodes and policies."""

from django.urls import path

from apps.evaluations import episode_views, measurement_views, views

urlpatterns = [
    path("evaluations/", views.evaluations, name="evaluations"),
    path("evaluations/<uuid:pk>/", views.evaluation, name="evaluation"),
    path("suites/<uuid:pk>/", views.suite, name="suite"),
    path("suites/<uuid:pk>/verifier/", measurement_views.suite_verifier, name="suite-verifier"),
    path("measured/<uuid:pk>/", measurement_views.measured_candidate, name="measured-candidate"),
    path("tasks/<uuid:pk>/", views.task, name="task"),
    path("groups/<uuid:pk>/", episode_views.group, name="group"),
    path("episodes/<uuid:pk>/", episode_views.episode, name="episode"),
    path("policies/<uuid:pk>/", views.policy, name="policy"),
]
