"""URLs of gates below /api/v1/."""

from django.urls import path

from apps.promotions.api import views

urlpatterns = [
    path("gates/", views.GateList.as_view(), name="api-gates"),
    path("gates/plan/", views.GatePlanView.as_view(), name="api-gate-plan"),
    path("gates/<uuid:pk>/", views.GateDetail.as_view(), name="api-gate"),
    path("gates/<uuid:pk>/decision/", views.GateDecision.as_view(), name="api-gate-decision"),
    path("gates/<uuid:pk>/confirm/", views.GateConfirm.as_view(), name="api-gate-confirm"),
    path("gates/<uuid:pk>/evidence/", views.GateEvidence.as_view(), name="api-gate-evidence"),
]
