"""URLs of suites and tasks below /api/v1/."""

from django.urls import path

from apps.tasks.api import report_views, views

urlpatterns = [
    path("suites/", views.SuiteList.as_view(), name="api-suites"),
    path("suites/import/", views.SuiteImport.as_view(), name="api-suite-import"),
    path("suites/<uuid:pk>/", views.SuiteDetail.as_view(), name="api-suite"),
    path("suites/<uuid:pk>/progress/", views.SuiteProgress.as_view(), name="api-suite-progress"),
    path("suites/<uuid:pk>/recheck/", views.SuiteRecheck.as_view(), name="api-suite-recheck"),
    path("suites/<uuid:pk>/tasks/", views.TaskList.as_view(), name="api-suite-tasks"),
    path("suites/<uuid:pk>/tasks.jsonl", views.TaskExport.as_view(), name="api-suite-tasks-export"),
    path("suites/<uuid:pk>/report/", report_views.SuiteReportDetail.as_view(), name="api-suite-report"),
    path(
        "suites/<uuid:pk>/report/<slug:finding>/", report_views.ReportFinding.as_view(), name="api-suite-report-finding"
    ),
    path("tasks/<uuid:pk>/contract/", report_views.TaskContract.as_view(), name="api-task-contract"),
    path("tasks/<uuid:pk>/", views.TaskDetail.as_view(), name="api-task"),
    path("tasks/<uuid:pk>/release/", views.TaskRelease.as_view(), name="api-task-release"),
    path("tasks/<uuid:pk>/put-back/", views.TaskPutBack.as_view(), name="api-task-put-back"),
]
