"""URL of retention below /api/v1/."""

from django.urls import path

from apps.retention.api import views

urlpatterns = [path("retention/", views.Retention.as_view(), name="api-retention")]
