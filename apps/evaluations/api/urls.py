"""URLs of evaluations and gate policies below /api/v1/."""

from django.urls import path

from apps.evaluations.api import measurement_views, views

urlpatterns = [
    path("evaluations/", views.EvaluationList.as_view(), name="api-evaluations"),
    path("evaluations/<uuid:pk>/", views.EvaluationDetail.as_view(), name="api-evaluation"),
    path("evaluations/<uuid:pk>/results/", views.EvaluationResults.as_view(), name="api-evaluation-results"),
    path("evaluations/<uuid:pk>/comparison/", views.EvaluationComparison.as_view(), name="api-evaluation-comparison"),
    path("evaluations/<uuid:pk>/retry/", views.EvaluationRetry.as_view(), name="api-evaluation-retry"),
    path("evaluations/<uuid:pk>/cancel/", views.EvaluationCancel.as_view(), name="api-evaluation-cancel"),
    path("evaluations/<uuid:pk>/episodes.jsonl", views.EvaluationEpisodes.as_view(), name="api-evaluation-episodes"),
    path("gate-policies/<uuid:pk>/", views.GatePolicyDetail.as_view(), name="api-gate-policy"),
    path("gate-policies/", views.GatePolicyList.as_view(), name="api-gate-policies"),
    path("suites/<uuid:pk>/verifier-gap/", views.VerifierGap.as_view(), name="api-verifier-gap"),
    path(
        "suites/<uuid:pk>/verifier-measurements/",
        measurement_views.MeasurementList.as_view(),
        name="api-verifier-measurements",
    ),
    path(
        "verifier-measurements/<uuid:pk>/",
        measurement_views.MeasurementDetail.as_view(),
        name="api-verifier-measurement",
    ),
    path(
        "verifier-measurements/<uuid:pk>/candidates/",
        measurement_views.MeasurementCandidates.as_view(),
        name="api-measured-candidates",
    ),
    path("measured-candidates/<uuid:pk>/", measurement_views.CandidateDetail.as_view(), name="api-measured-candidate"),
    path("suites/<uuid:pk>/heldout-ledger/", views.HeldoutLedger.as_view(), name="api-heldout-ledger"),
]
