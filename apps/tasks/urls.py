"""URLs of the list of suites and of a suite's report."""

from django.urls import path

from apps.tasks import views
from apps.tasks.reports.views import suite_report

urlpatterns = [
    path("suites/", views.suites, name="suites"),
    path("suites/<uuid:pk>/report/", suite_report, name="suite-report"),
]
