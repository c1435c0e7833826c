"""URL of the list of suites."""

from django.urls import path

from apps.tasks import views

urlpatterns = [path("suites/", views.suites, name="suites")]
