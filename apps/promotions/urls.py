"""URLs of home and of the pages of gates."""

from django.urls import path

from apps.promotions import views

urlpatterns = [
    path("", views.home, name="home"),
    path("gates/", views.gates, name="gates"),
    path("gates/<uuid:pk>/", views.gate, name="gate"),
    path("gates/<uuid:pk>/progress/", views.gate_progress, name="gate-progress"),
]
