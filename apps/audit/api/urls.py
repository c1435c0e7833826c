"""URLs of the audit trail below /api/v1/."""

from django.urls import path

from apps.audit.api import views

urlpatterns = [
    path("audit/", views.AuditList.as_view(), name="api-audit"),
    path("audit/verify/", views.AuditVerify.as_view(), name="api-audit-verify"),
    path("audit/export/", views.AuditExport.as_view(), name="api-audit-export"),
]
