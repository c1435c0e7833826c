"""URLs of runs, groups and episodes below /api/v1/."""

from django.urls import path

from apps.runs.api import episode_views, reproduction_views, views

urlpatterns = [
    path("runs/", views.RunList.as_view(), name="api-runs"),
    path("runs/validate/", views.RunValidate.as_view(), name="api-run-validate"),
    path("runs/<uuid:pk>/", views.RunDetail.as_view(), name="api-run"),
    path("runs/<uuid:pk>/cancel/", views.RunCancel.as_view(), name="api-run-cancel"),
    path("runs/<uuid:pk>/pause/", views.RunPause.as_view(), name="api-run-pause"),
    path("runs/<uuid:pk>/resume/", views.RunResume.as_view(), name="api-run-resume"),
    path("runs/<uuid:pk>/retry/", views.RunRetry.as_view(), name="api-run-retry"),
    path("runs/<uuid:pk>/events/", views.RunEvents.as_view(), name="api-run-events"),
    path("runs/<uuid:pk>/ledger/", views.RunLedger.as_view(), name="api-run-ledger"),
    path("runs/<uuid:pk>/long-tail/", views.RunLongTail.as_view(), name="api-run-long-tail"),
    path("runs/<uuid:pk>/checkpoints/", views.RunCheckpoints.as_view(), name="api-run-checkpoints"),
    path("runs/<uuid:pk>/batches/", views.RunBatches.as_view(), name="api-run-batches"),
    path("runs/<uuid:pk>/groups/", views.RunGroups.as_view(), name="api-run-groups"),
    path("runs/<uuid:pk>/episodes.jsonl", views.RunEpisodes.as_view(), name="api-run-episodes"),
    path("groups/<uuid:pk>/", episode_views.GroupDetail.as_view(), name="api-group"),
    path("episodes/", episode_views.EpisodeList.as_view(), name="api-episodes"),
    path("episodes/<uuid:pk>/", episode_views.EpisodeDetail.as_view(), name="api-episode"),
    path("episodes/<uuid:pk>/reproduce/", reproduction_views.EpisodeReproduce.as_view(), name="api-episode-reproduce"),
    path(
        "episodes/<uuid:pk>/reproductions/",
        reproduction_views.EpisodeReproductions.as_view(),
        name="api-episode-reproductions",
    ),
    path(
        "episodes/<uuid:pk>/reproductions/<uuid:reproduction>/",
        reproduction_views.ReproductionDetail.as_view(),
        name="api-reproduction",
    ),
]
